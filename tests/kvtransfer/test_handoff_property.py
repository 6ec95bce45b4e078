"""Both sides over a link that drops, delays, reorders and repeats: equal bytes and one Accepted, or nothing held.

The link has two stages. What the socket holds still refers to the sender's memory and leaves in order; what is on the
way is a copy, and there anything may happen to it. Blocks are scribbled over as soon as the rules call them free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from core.config import TransferConfig
from core.ids import SequenceKey
from core.messages import Addressed, decode_to_decode, decode_to_prefill, encode
from kvtransfer.arrivals import Arrivals
from kvtransfer.departures import Departures
from kvtransfer.digest import block_digests
from kvtransfer.moves import Closed, Dropped, HandoffKey, Instruction, Land, Landed, Lost, Send, Unpinned, Wanted
from kvtransfer.receiver import Granted, ReceiverState
from kvtransfer.sender import FrameDone, GiveUp, LayerReady, Sender, SenderState
from tests.kvtransfer.world import BLOCK_BYTES, DECODE, PREFILL, SPEC, TOKENS, Pool, request

HANDOFFS = 3
BLOCKS = 4  # of each handoff
LINK = b"link"
FATES = st.lists(st.sampled_from(["arrive"] * 9 + ["repeat", "repeat", "drop", "delay"]), min_size=1, max_size=10)
T = TypeVar("T")


@dataclass
class Packet:
    """One multipart message: bytes of the header, and the payload."""

    data: bytes
    frames: list[memoryview] = field(default_factory=list)
    handoff: int = 0
    number: int = 0


class HandoffMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.source, self.target = Pool(SPEC, 64, seed=1), Pool(SPEC, 64, seed=2)
        self.socket: list[Packet] = []  # to the decode side, not yet copied
        self.out: list[Packet] = []  # to the decode side
        self.back: list[bytes] = []  # to the prefill side
        self.expected: dict[int, bytes] = {}
        self.source_blocks: dict[int, list[int]] = {}
        self.target_blocks: dict[HandoffKey, list[int]] = {}  # reserved
        self.free = list(range(1, 64))
        self.wanted: list[HandoffKey] = []
        self.closed: dict[int, Closed] = {}
        self.unpinned: set[int] = set()
        self.landed: dict[int, Landed] = {}
        self.dropped: dict[int, Dropped] = {}
        self.cancelled: set[int] = set()
        self.mishaps = 0  # drops and overtakings
        self.lost = False

    @initialize(
        window=st.sampled_from([1, 20, 4096]), frame=st.sampled_from([1, 16, 64]), held=st.integers(0, BLOCKS - 1),
        streaming=st.booleans(),
    )  # fmt: skip
    def begin(self, window: int, frame: int, held: int, streaming: bool) -> None:
        self.config = TransferConfig(window=window, frame=frame, grant_deadline=10.0)
        self.departures = Departures(self.config, PREFILL, DECODE, SPEC, trace=True)
        self.arrivals = Arrivals(self.config, DECODE, SPEC, trace=True)
        for number in range(HANDOFFS):
            tokens = 4 * BLOCKS - number
            blocks = [number * BLOCKS + 1 + at for at in (2, 0, 1, 3)]
            self.source_blocks[number] = blocks
            self.expected[number] = self.source.content([blocks])
            what = request(tokens, request=f"r{number}")
            self.sender_does(self.departures.open(number, what, self.now))
        if streaming:  # most mishaps are worth more when payloads are on the way
            self.send(0, ["arrive"] * HANDOFFS)
            self.deliver(HANDOFFS)
            for _ in range(HANDOFFS):
                self.grant(held)
            self.deliver_back(["arrive"] * HANDOFFS)
            for number in range(HANDOFFS):
                self.layer_ready(number, 0, BLOCKS)

    # what the engines do ------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, HANDOFFS - 1), layer=st.integers(0, 1), upto=st.sampled_from([1, 2, BLOCKS]))
    def layer_ready(self, number: int, layer: int, upto: int) -> None:
        sender = self.departures.handoffs.get(number)
        if sender is None or (sender.state is not SenderState.COMMITTED and sender._first_tokens is None):
            self.sender_does(self.departures.handle(number, LayerReady(0, layer, upto), self.now))

    @rule(number=st.integers(0, HANDOFFS - 1))
    def finish(self, number: int) -> None:
        sender = self.departures.handoffs.get(number)
        if sender is not None and sender._first_tokens is None:
            for layer in (0, 1):
                self.sender_does(self.departures.handle(number, LayerReady(0, layer, BLOCKS), self.now))
            self.sender_does(self.departures.handle(number, TOKENS, self.now))

    @rule(number=st.integers(0, HANDOFFS - 1), where=st.sampled_from(["nowhere"] * 6 + ["sender", "receiver"]))
    def cancel(self, number: int, where: str) -> None:
        if where == "nowhere":  # keeps cancels rare
            return
        self.cancelled.add(number)
        if where == "sender":
            self.sender_does(self.departures.handle(number, GiveUp("cancelled"), self.now))
        else:
            self.receiver_does(self.arrivals.cancel(SequenceKey(f"r{number}", 0), 1, self.now))

    @precondition(lambda self: self.wanted)
    @rule(held=st.integers(0, BLOCKS))
    def grant(self, held: int) -> None:
        key = self.wanted.pop(0)
        if len(self.free) < BLOCKS:
            return
        blocks, self.free = self.free[:BLOCKS], self.free[BLOCKS:]
        if key in self.target_blocks or key.handoff in self.dropped or key.handoff in self.landed:
            self.free += blocks  # its Dropped came first
            return
        for (group, layer), _ in self.target.layers.items():  # a prefix that is cached here already
            held_source, held_target = self.source_blocks[key.handoff][:held], blocks[:held]
            self.target.write(group, layer, held_target, self.source.read(group, layer, held_source))
        self.target_blocks[key] = blocks
        self.receiver_does(self.arrivals.handle(key, Granted((blocks,), held), self.now))

    # what the world does ------------------------------------------------------------------------------------------

    @rule(step=st.sampled_from([0.01, 0.1, 0.3]))
    def time_passes(self, step: float) -> None:
        self.now += step
        if not self.lost:
            self.sender_does(self.departures.tick(self.now))
        self.receiver_does(self.arrivals.tick(self.now))

    @rule(payloads=st.integers(0, 6), fates=FATES)
    def send(self, payloads: int, fates: Sequence[str]) -> None:
        """Payloads whose turn it is join the socket's queue; one message per fate leaves it."""
        for _ in range(payloads):
            turn = None if self.lost else self.departures.next_payload()
            if turn is not None:
                self.push_payload(*turn)
        leaving, self.socket = self.socket[: len(fates)], self.socket[len(fates) :]
        copies = [self.copy(packet) for packet in leaving]
        self.out += self.befall(copies, fates)

    @rule(count=st.integers(1, 12))
    def deliver(self, count: int) -> None:
        arriving, self.out = self.out[:count], self.out[count:]
        for packet in arriving:
            self.arrive(packet)
        self.receiver_does(list(self.arrivals.credits()))

    @rule(fates=FATES)
    def deliver_back(self, fates: Sequence[str]) -> None:
        arriving, self.back = self.back[: len(fates)], self.back[len(fates) :]
        for data in self.befall(arriving, fates):
            self.answer(data)

    def befall(self, packets: list[T], fates: Sequence[str]) -> list[T]:
        """What becomes of each on the way; the delayed come last."""
        arriving: list[T] = []
        late: list[T] = []
        for packet, fate in zip(packets, fates, strict=False):
            self.mishaps += fate in ("drop", "delay")  # repetitions do no harm
            arriving += [packet] * (0 if fate in ("drop", "delay") else 1)
            late += [packet] * (fate in ("repeat", "delay"))
        return arriving + late

    # carrying out -------------------------------------------------------------------------------------------------

    def push_payload(self, sender: Sender, payload: object) -> None:
        header = self.departures.header(sender, payload)  # type: ignore[arg-type]
        blocks = self.source_blocks[sender.number][header.first : header.first + header.count]
        views = self.source.read(0, header.layer, blocks)
        self.socket.append(Packet(encode(header), views, sender.number, header.number))
        digests = block_digests(0, header.layer, header.first, BLOCK_BYTES, views)
        self.sender_does(self.departures.payload_left(sender, payload, digests, self.now))  # type: ignore[arg-type]

    def copy(self, packet: Packet) -> Packet:
        frames = [memoryview(bytes(view)) for view in packet.frames]
        if packet.frames:
            self.sender_does(self.departures.handle(packet.handoff, FrameDone(packet.number), self.now))
        return Packet(packet.data, frames)

    def arrive(self, packet: Packet) -> None:
        message = decode_to_decode(packet.data)
        sizes = tuple(len(frame) for frame in packet.frames)
        for move in self.arrivals.receive(LINK, message, sizes, self.now):
            if isinstance(move, Land):
                header = move.header
                self.target.write(header.group, header.layer, move.blocks, packet.frames)
                digests = block_digests(header.group, header.layer, header.first, BLOCK_BYTES, packet.frames)
                self.receiver_does(self.arrivals.landed(move, digests, self.now))
            else:
                self.receiver_does([move])

    def answer(self, data: bytes) -> None:
        if not self.lost:
            self.sender_does(self.departures.receive(decode_to_prefill(data), self.now))

    def sender_does(self, moves: Sequence[Instruction]) -> None:
        for move in moves:
            match move:
                case Send(message):
                    self.socket.append(Packet(encode(message)))
                case Closed():
                    assert move.handoff not in self.closed
                    self.closed[move.handoff] = move
                case Unpinned(number):
                    assert number in self.closed and number not in self.unpinned
                    assert not any(packet.frames and packet.handoff == number for packet in self.socket)
                    self.unpinned.add(number)
                    self.scribble(self.source, self.source_blocks[number])
                case Lost():
                    self.lost = True
                    gone, self.socket = self.socket, []  # closed first
                    self.sender_does(self.departures.lost("peer_silent", self.now))
                    for packet in gone:
                        if packet.frames:
                            done = FrameDone(packet.number)
                            self.sender_does(self.departures.handle(packet.handoff, done, self.now))
                case _:
                    raise AssertionError(move)

    def receiver_does(self, moves: Sequence[Instruction]) -> None:
        for move in moves:
            match move:
                case Send(message, link):
                    assert link == LINK and isinstance(message, Addressed)
                    self.back.append(encode(message))
                case Wanted(key):
                    self.wanted.append(key)
                case Landed():
                    number = move.key.handoff
                    assert number not in self.landed and number not in self.dropped
                    self.landed[number] = move
                    assert self.target.content([self.target_blocks[move.key]]) == self.expected[number]
                case Dropped(key, _, owned):
                    assert key.handoff not in self.dropped and owned == (key.handoff in self.landed)
                    self.dropped[key.handoff] = move
                    blocks = self.target_blocks.pop(key, [])
                    self.scribble(self.target, blocks)
                    self.free += blocks
                case _:
                    raise AssertionError(move)

    def scribble(self, pool: Pool, blocks: list[int]) -> None:
        for group, layer in pool.layers:
            pool.write(group, layer, blocks, [b"\xee" * BLOCK_BYTES * len(blocks)])

    # the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "departures"):
            return
        self.calm_until = self.now
        for number in range(HANDOFFS):
            self.finish(number)
        for _ in range(200):  # 20 s over a link that works
            self.time_passes(0.1)
            while self.wanted:
                self.grant(0)
            while not self.lost and (turn := self.departures.next_payload()) is not None:
                self.push_payload(*turn)
            self.transmit_all()
            if not self.departures.handoffs and not self.waits():
                break
        assert not self.departures.handoffs, "the sender still has a handoff"
        assert not self.waits(), "the receiver still waits"
        assert set(self.closed) == self.unpinned == set(range(HANDOFFS))
        for number, end in self.closed.items():
            landed = self.landed.get(number)
            event(f"{end.outcome} {end.reason}")
            harmed = self.mishaps or number in self.cancelled or self.calm_until > 4.0
            assert end.outcome == "accepted" or harmed, f"nothing went wrong, but {end}"
            if end.outcome == "accepted":
                assert landed is not None
                assert (end.digest, end.bytes, end.digests) == (landed.digest, landed.bytes, landed.digests)
            else:
                assert landed is None or self.lost, f"landed, but the sender says {end}"
            owned = landed is not None and number not in self.dropped
            assert (HandoffKey(PREFILL, number) in self.target_blocks) == owned, "blocks are held by nobody"

    def transmit_all(self) -> None:
        while self.socket or self.out or self.back or any(w.due for w, _, _ in self.arrivals._links.values()):
            self.send(0, ["arrive"] * len(self.socket))
            self.deliver(len(self.out))
            self.deliver_back(["arrive"] * len(self.back))
            while not self.lost and (turn := self.departures.next_payload()) is not None:
                self.push_payload(*turn)

    def waits(self) -> bool:
        return any(receiver.state is not ReceiverState.OWNED for receiver in self.arrivals.handoffs.values())


HandoffMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target),
)
TestHandoff = HandoffMachine.TestCase
