"""Runs both sides over a link that drops, delays, reorders and repeats: equal bytes and one Accepted, or nothing held.

The link has two stages. What the socket holds still refers to the sender's memory and leaves in order; what is on the
way is a copy, and there anything may happen to it. Blocks are scribbled over as soon as the rules call them free. In
half of the examples the sender writes into the receiver's pool itself, and never into a block that is another's.

Each example draws which troubles it may meet and the steps at which calamities come, so that some meet none and have to
succeed, and the rare ends are not left to luck. `--hypothesis-show-statistics` says what share of examples met what.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs
from msgspec.structs import replace

from contracts.ids import AttemptKey, SampleKey
from contracts.kv.spec import KVGroup, KVSpec
from contracts.messages.handoff import Branch, Grant, Layer, Remind, decode_to_decode, decode_to_prefill
from contracts.messages.wire import Addressed, encode
from infra.config.transfer import TransferConfig
from kvtransfer.digest import PayloadPlace, payload_digest
from kvtransfer.events import AbortHandoff, Closed, Dropped, Landed, LayerReady, RoomGranted, RoomWanted, Unpinned
from kvtransfer.handoff import HandoffKey, handoff_blocks
from kvtransfer.protocol.decode_handoff import DecodeHandoffState
from kvtransfer.protocol.decode_links import DecodeLinks
from kvtransfer.protocol.instructions import Instruction, Land, Lost, Send
from kvtransfer.protocol.prefill_handoff import FrameDone, PrefillHandoff, PrefillHandoffState
from kvtransfer.protocol.prefill_link import PrefillLink
from tests.kvtransfer.world import BLOCK_BYTES, SPEC, TOKENS, Pool, opened

HANDOFFS = 3
BLOCKS = 4  # of each handoff, in each KV group
LAYERS = (0, 1)
WINDOWED = KVSpec((structs.replace(SPEC.groups[0], layers=(1,), window=6), KVGroup("full", (0,), 4, 8)), "test", "none")
NUMBERS = st.integers(0, HANDOFFS - 1)
FATES = st.lists(st.sampled_from(["arrive"] * 9 + ["repeat", "repeat", "drop", "delay"]), min_size=1, max_size=10)
AHEAD = st.lists(st.booleans(), min_size=1, max_size=6)
TROUBLES = ((), ("cancel",), ("loss",), ("loss", "cancel"))
SILENCES = ["silence everywhere", "silence on the way there", "silence on the way back"]
CALAMITIES = ["payload lost"] * 3 + SILENCES + ["decode restarts"] * 2 + ["prefill restarts"] + ["room is short"] * 3
T = TypeVar("T")


@dataclass
class Packet:
    """Holds one multipart message: bytes of the header, and the payload."""

    data: bytes
    link: bytes
    frames: list[memoryview] = field(default_factory=list)
    handoff: int = 0
    number: int = 0


class HandoffMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.steps = 0
        self.socket: list[Packet] = []  # messages to the decode side
        self.channel: list[Packet] = []  # payloads to the decode side, not yet copied; they may overtake messages
        self.out: list[Packet] = []  # to the decode side
        self.back: list[bytes] = []  # to the prefill side
        self.target_blocks: dict[HandoffKey, list[int]] = {}  # reserved
        self.pushed: dict[tuple[str, int], dict[PayloadPlace, int]] = {}  # digests of the payloads that left
        self.free = list(range(1, 64))
        self.wanted: list[HandoffKey] = []
        self.heard: set[HandoffKey] = set()  # whose Open has come to this life of the decode side
        self.landed: dict[HandoffKey, Landed] = {}
        self.dropped: dict[HandoffKey, Dropped] = {}
        self.attempt = 0  # of every handoff of this life of the prefill side
        self.decode_lives = 0
        self.ending: list[bytes] = []  # links whose writers have ended, which the decode side does not know yet

    @initialize(
        window=st.sampled_from([1, 20, 4096]),
        frame=st.sampled_from([1, 16, 64]),
        line=st.sampled_from([1, HANDOFFS]),
        streaming=st.booleans(),
        windowed=st.booleans(),
        writes=st.booleans(),
        cached=st.lists(st.integers(0, BLOCKS), min_size=HANDOFFS, max_size=HANDOFFS),
        samples=st.lists(st.integers(1, 3), min_size=HANDOFFS, max_size=HANDOFFS),
        troubles=st.sampled_from(TROUBLES),
        calamities=st.lists(st.tuples(st.sampled_from(CALAMITIES), st.integers(2, 25)), max_size=2),
    )
    def begin(
        self,
        window: int,
        frame: int,
        line: int,
        streaming: bool,
        windowed: bool,
        writes: bool,
        cached: list[int],
        samples: list[int],
        troubles: tuple[str, ...],
        calamities: list[tuple[str, int]],
    ) -> None:
        self.config = TransferConfig(window=window, frame=frame, grant_deadline=10.0, grants_waiting=line)
        self.spec = WINDOWED if windowed else SPEC
        self.target = Pool(self.spec, 64, seed=2)
        self.places = {layer: (at, layer) for at, group in enumerate(self.spec.groups) for layer in group.layers}
        self.needed = [handoff_blocks(self.spec, 4 * BLOCKS - number) for number in range(HANDOFFS)]
        # leading blocks of each handoff, by KV group, that the decode side holds already, or does not need
        self.held = [tuple([max(count, each.start) for each in self.needed[at]]) for at, count in enumerate(cached)]
        self.samples = [tuple(range(count)) for count in samples]
        self.writes = writes
        self.troubles = troubles
        self.calamities = calamities
        self.new_decode_life()
        self.new_prefill_life()
        if streaming and cached[0] % 2:  # else some are granted first
            self.writer_comes()
        if streaming:  # most troubles are worth more when payloads are on the way
            self.send(0, ["arrive"] * HANDOFFS)
            self.deliver(HANDOFFS)
            while self.wanted:
                self.grant()
            self.deliver_back(["arrive"] * HANDOFFS)
            for number in range(HANDOFFS):
                self.layer_ready(number, 0, BLOCKS)

    def new_decode_life(self) -> None:
        """Starts a decode side; nothing is left of what an earlier one held."""
        self.decode_lives += 1
        self.decode = f"decode-{self.decode_lives}"
        self.receivers = DecodeLinks(self.config, self.decode, self.spec, trace=True)
        for blocks in self.target_blocks.values():
            self.scribble(self.target, blocks)
            self.free += blocks
        self.target_blocks, self.wanted, self.heard = {}, [], set()
        self.ending = []

    def new_prefill_life(self) -> None:
        """Starts a prefill side with the next attempt at every request, over a link of its own."""
        self.attempt += 1
        self.prefill = f"prefill-{self.attempt}"
        self.source = Pool(self.spec, 64, seed=1)
        self.senders = PrefillLink(self.config, self.prefill, self.decode, self.spec, trace=True)
        self.socket, self.channel = [], []
        self.memory_of = ""  # the decode side's life whose pool this one may write into
        self.source_blocks: dict[int, list[int]] = {}
        self.expected: dict[int, bytes] = {}
        self.moving: dict[int, set[tuple[int, int]]] = {}  # (layer, block) that the decode side lacks and needs
        self.branches: dict[int, list[Branch]] = {}  # as committed
        self.closed: dict[int, Closed] = {}
        self.unpinned: set[int] = set()
        self.dead: set[SampleKey] = set()  # branches that the receiver knows to be cancelled
        self.cancelled: set[int] = set()
        self.lost = False
        self.mishaps = 0  # what may end a handoff: messages lost or overtaken, calamities
        self.begun = self.now
        for number in range(HANDOFFS):
            blocks = [number * BLOCKS + 1 + at for at in (2, 0, 1, 3)]
            self.source_blocks[number] = blocks
            self.expected[number] = self.source.content(self.tables(number, blocks))
            held = {layer: self.held[number][group] for group, layer in self.places.values()}
            self.moving[number] = {(layer, at) for layer in LAYERS for at in range(held[layer], len(blocks))}
            what = opened(
                4 * BLOCKS - number,
                handoff=number,
                samples=self.samples[number],
                deadline=self.now + 60,
                request=f"r{number}",
                attempt=self.attempt,
                decode_epoch=self.decode,
            )
            self.sender_does(self.senders.open(what, self.now))

    def tables(self, number: int, blocks: list[int]) -> list[list[int]]:
        """The blocks of each KV group that a handoff is about."""
        return [[blocks[at] for at in each] for each in self.needed[number]]

    # what the engines do ------------------------------------------------------------------------------------------

    @rule(number=NUMBERS, layer=st.sampled_from(LAYERS), upto=st.sampled_from([1, 2, BLOCKS]))
    def layer_ready(self, number: int, layer: int, upto: int) -> None:
        sender = self.senders.handoffs.get(number)
        if sender is None or (sender.state is not PrefillHandoffState.COMMITTED and sender._going is None):
            self.sender_does(self.senders.handle(LayerReady(number, *self.places[layer], upto), self.now))

    @rule(number=NUMBERS, ended=st.sets(st.integers(0, 2)))
    def finish(self, number: int, ended: set[int]) -> None:
        """Commits a handoff: the first token is there, and was the last of the samples in `ended`."""
        sender = self.senders.handoffs.get(number)
        if sender is not None and sender._going is None:
            for layer in LAYERS:
                self.sender_does(self.senders.handle(LayerReady(number, *self.places[layer], BLOCKS), self.now))
            living = [sample for sample in self.samples[number] if sample not in ended] or [0]
            self.branches[number] = [Branch(sample, [7 + sample]) for sample in living]
            first = replace(TOKENS, handoff=number, branches=self.branches[number])
            self.sender_does(self.senders.handle(first, self.now))

    @precondition(lambda self: "cancel" in self.troubles)
    @rule(number=NUMBERS, where=st.sampled_from(["nowhere"] * 6 + ["sender", "receiver"]))
    def cancel(self, number: int, where: str) -> None:
        if where == "nowhere":  # keeps cancels rare
            return
        if where == "sender":
            self.cancelled.add(number)
            self.sender_does(self.senders.handle(AbortHandoff(number, "cancelled"), self.now))
        else:
            for sample in self.samples[number]:
                self.cancel_branch(number, sample)

    @precondition(lambda self: "cancel" in self.troubles)
    @rule(number=NUMBERS, sample=st.integers(0, 2))
    def cancel_branch(self, number: int, sample: int) -> None:
        """Cancels a sample; the handoff ends with the last of its samples only."""
        if sample not in self.samples[number]:
            return
        self.dead.add(SampleKey(f"r{number}", sample))
        if all(SampleKey(f"r{number}", other) in self.dead for other in self.samples[number]):
            self.cancelled.add(number)
        else:
            event("a branch of several was cancelled")
        moves = self.receivers.cancel(AttemptKey(f"r{number}", sample, self.attempt), self.now)
        ended = [move.key for move in moves if isinstance(move, Dropped) and move.key.sender == self.prefill]
        assert number in self.cancelled or not ended, "somebody still wants it"
        self.receiver_does(moves)

    @precondition(lambda self: self.wanted)
    @rule()
    def grant(self) -> None:
        key = self.wanted.pop(0)
        if len(self.free) < BLOCKS:
            return
        if key in self.target_blocks or key in self.dropped or key in self.landed:
            return  # its Dropped came first
        blocks, self.free = self.free[:BLOCKS], self.free[BLOCKS:]
        held = self.held[key.handoff]
        event(f"granted: held {'none' if not any(held) else 'all' if min(held) == BLOCKS else 'some'}")
        fresh = Pool(self.spec, 64, seed=1)  # the prefill side's blocks may be in other use by now
        for group, layer in self.places.values():  # a prefix that is cached here already
            there = self.source_blocks[key.handoff][: held[group]]
            self.target.write(group, layer, blocks[: held[group]], fresh.read(group, layer, there))
        self.target_blocks[key] = blocks
        starts = [each.start for each in self.needed[key.handoff]]
        tables = tuple([[0] * start + blocks[start:] for start in starts])
        self.receiver_does(self.receivers.handle(RoomGranted(key, tables, held), self.now))

    # what the world does ------------------------------------------------------------------------------------------

    @rule(step=st.sampled_from([0.01, 0.1, 0.3]))
    def time_passes(self, step: float) -> None:
        self.now += step
        if not self.lost:
            self.sender_does(self.senders.tick(self.now))
        self.receiver_does(self.receivers.tick(self.now))

    @precondition(lambda self: self.writes and not self.memory_of)
    @rule()
    def writer_comes(self) -> None:
        """Gives the sender the memory of the pool, if the life that it knows is still there."""
        if self.writes and not self.memory_of and not self.lost and self.senders.ends[1] == self.decode:
            self.memory_of = self.decode
            self.receiver_does(self.receivers.writer_came(self.prefill.encode(), self.now))

    @rule()
    def writers_end_is_seen(self) -> None:
        while self.ending:
            event("a writer ended")
            self.receiver_does(self.receivers.writer_gone(self.ending.pop(), self.now))

    @rule(payloads=st.integers(0, 6), fates=FATES, ahead=AHEAD)
    def send(self, payloads: int, fates: Sequence[str], ahead: Sequence[bool] = (False,)) -> None:
        """Queues payloads whose turn it is at the channel; one packet per fate leaves that queue, or the socket's."""
        for _ in range(payloads):
            turn = None if self.lost else self.senders.next_payload()
            if turn is not None:
                self.push_payload(*turn)
        copies = []
        for at in range(min(len(fates), len(self.socket) + len(self.channel))):
            overtakes = self.channel and (ahead[at % len(ahead)] or not self.socket)
            copies.append(self.copy((self.channel if overtakes else self.socket).pop(0)))
        self.out += self.befall(copies, fates)

    @rule(count=st.integers(1, 12))
    def deliver(self, count: int) -> None:
        arriving, self.out = self.out[:count], self.out[count:]
        for packet in arriving:
            self.arrive(packet)
        self.receiver_does(list(self.receivers.credits()))

    @rule(fates=FATES)
    def deliver_back(self, fates: Sequence[str]) -> None:
        arriving, self.back = self.back[: len(fates)], self.back[len(fates) :]
        for data in self.befall(arriving, fates):
            self.answer(data)

    @rule(payloads=st.integers(0, 6), there=FATES, back=FATES, ahead=AHEAD)
    def round_trip(self, payloads: int, there: Sequence[str], back: Sequence[str], ahead: Sequence[bool]) -> None:
        """Goes all of the way in one rule: Hypothesis leaves rules out of an example, and then nothing would move."""
        self.send(payloads, there, ahead)
        self.deliver(len(self.out) or 1)
        while self.wanted:
            self.grant()
        self.deliver_back(back)

    @invariant()
    def calamity(self) -> None:
        """Lets the calamities come whose step it is."""
        self.steps += 1
        due = [what for what, step in self.calamities if step <= self.steps]
        self.calamities = [(what, step) for what, step in self.calamities if step > self.steps]
        for what in due:
            match what:
                case "decode restarts":
                    self.decode_restarts()
                case "prefill restarts":
                    self.prefill_restarts()
                case "payload lost":
                    self.payload_lost()
                case "room is short":
                    self.room_is_short()
                case _:
                    self.silence(what)

    def payload_lost(self) -> None:
        """Loses the next payload that leaves; what is before and behind it arrives."""
        for number in range(HANDOFFS):
            self.layer_ready(number, 1, BLOCKS)
        if self.lost or self.senders.next_payload() is None:  # not granted yet, or the window is closed
            self.calamities.append(("payload lost", self.steps + 1))
            return
        self.mishaps += 1
        self.send(1, ["arrive"] * (len(self.socket) + len(self.channel) + 2))  # it may bring a Commit along
        if lost := [at for at, packet in enumerate(self.out) if packet.frames]:
            del self.out[lost[-1]]

    def room_is_short(self) -> None:
        """Lets those wait that have asked, while all that is said arrives. This is no mishap: they have to succeed."""
        for _ in range(5):
            self.time_passes(0.3)
            self.send(0, ["arrive"] * (len(self.socket) + len(self.channel)))
            self.deliver(len(self.out))
            self.deliver_back(["arrive"] * len(self.back))

    def silence(self, where: str) -> None:
        """Lets nothing arrive for six seconds in one direction, or in both."""
        self.mishaps += 1
        for _ in range(12):
            self.time_passes(0.5)
            self.send(1, ["arrive"] * (len(self.socket) + len(self.channel) + 1))
            if where != "silence on the way back":
                self.out = []
            self.deliver(len(self.out))
            if where != "silence on the way there":
                self.back = []
            self.deliver_back(["arrive"] * len(self.back))

    def decode_restarts(self) -> None:
        """Restarts the decode side at the same address: what the socket still holds will reach the new life."""
        event("the decode side restarted")
        self.mishaps += 1
        self.out = []
        self.new_decode_life()

    def prefill_restarts(self) -> None:
        """Restarts the prefill side; what is on the way to it, and from it, still arrives."""
        event("the prefill side restarted")
        self.writer_ends()
        self.new_prefill_life()

    def befall(self, packets: list[T], fates: Sequence[str]) -> list[T]:
        """Decides what becomes of each packet on the way; the delayed come last."""
        arriving: list[T] = []
        late: list[T] = []
        for packet, drawn in zip(packets, fates, strict=False):
            fate = drawn if "loss" in self.troubles or drawn == "repeat" else "arrive"
            self.mishaps += fate in ("drop", "delay")  # repetitions do no harm
            arriving += [packet] * (0 if fate in ("drop", "delay") else 1)
            late += [packet] * (fate in ("repeat", "delay"))
        return arriving + late

    # carrying out -------------------------------------------------------------------------------------------------

    def writer_ends(self) -> None:
        if self.memory_of == self.decode:
            self.ending.append(self.prefill.encode())
        self.memory_of = ""

    def push_payload(self, sender: PrefillHandoff, payload: object) -> bool:
        """Hands a payload to the channel, or into the pool; returns False if the channel takes none."""
        header = self.senders.header(sender, payload)  # type: ignore[arg-type]
        group, layer = self.places[header.layer]
        assert header.first >= self.held[sender.number][group], "the decode side holds this block"
        blocks = self.source_blocks[sender.number][header.first : header.first + header.count]
        views = self.source.read(group, layer, blocks)
        if self.writes and not (self.memory_of and sender.granted):
            return False
        if self.memory_of == self.decode:  # else it is the memory of a process that is gone
            into = sender.granted[group][header.first : header.first + header.count]
            owned = self.target_blocks.get(HandoffKey(self.prefill, sender.number), ())
            assert len(into) == header.count and set(into) <= set(owned), "a write into blocks that may be another's"
            self.target.write(group, layer, into, views)
        self.channel.append(Packet(encode(header), self.prefill.encode(), views, sender.number, header.number))
        digest = payload_digest(group, layer, header.first, views)
        self.pushed.setdefault((self.prefill, sender.number), {})[group, layer, header.first] = digest
        self.sender_does(self.senders.payload_left(sender, payload, digest, self.now))  # type: ignore[arg-type]
        return True

    def copy(self, packet: Packet) -> Packet:
        frames = [memoryview(bytes(view)) for view in packet.frames]
        if packet.frames:
            self.sender_does(self.senders.handle(FrameDone(packet.handoff, packet.number), self.now))
        return Packet(packet.data, packet.link, frames)

    def arrive(self, packet: Packet) -> None:
        message = decode_to_decode(packet.data)
        if isinstance(message, Remind):
            event(f"reminded: {'of this life' if message.receiver == self.decode else 'of another'}")
            heard = {key.handoff for key in self.heard if key.sender == message.sender}
            assert message.receiver != self.decode or message.handoff in heard, "its Open never came"
        size = sum(len(frame) for frame in packet.frames)
        for move in self.receivers.receive(packet.link, message, size, self.now):  # type: ignore[arg-type]
            if isinstance(move, Land):
                header = move.header
                assert move.blocks == self.target_blocks[move.key][header.first : header.first + header.count]
                assert header.first >= self.held[move.key.handoff][header.group], "a held block is never landed into"
                assert isinstance(move.blocks, list)
                if not self.writes:
                    self.target.write(header.group, header.layer, move.blocks, packet.frames)
                here = self.target.read(header.group, header.layer, move.blocks)
                digest = payload_digest(header.group, header.layer, header.first, here)
                self.receiver_does(self.receivers.landed(move, digest, self.now))
            else:
                self.receiver_does([move])

    def answer(self, data: bytes) -> None:
        if not self.lost:
            self.sender_does(self.senders.receive(decode_to_prefill(data), self.now))

    def sender_does(self, moves: Sequence[Instruction]) -> None:
        for move in moves:
            match move:
                case Send(Layer() as probe):
                    self.channel.append(Packet(encode(probe), self.prefill.encode()))
                case Send(message):
                    self.socket.append(Packet(encode(message), self.prefill.encode()))
                case Closed():
                    assert move.handoff not in self.closed
                    self.closed[move.handoff] = move
                case Unpinned(number):
                    assert number in self.closed and number not in self.unpinned
                    assert not any(packet.frames and packet.handoff == number for packet in self.channel)
                    self.unpinned.add(number)
                    self.scribble(self.source, self.source_blocks[number])
                case Lost(reason):
                    event(f"lost: {reason}")
                    self.lost = True
                    self.writer_ends()
                    gone, self.socket, self.channel = self.channel, [], []  # closed first
                    self.sender_does(self.senders.lost(reason, self.now))
                    for packet in gone:
                        if packet.frames:
                            done = FrameDone(packet.handoff, packet.number)
                            self.sender_does(self.senders.handle(done, self.now))
                case _:
                    raise AssertionError(move)

    def receiver_does(self, moves: Sequence[Instruction]) -> None:
        for move in moves:
            match move:
                case Send(message, link):
                    assert isinstance(message, Addressed) and link == message.receiver.encode()
                    if isinstance(message, Grant):
                        assert tuple(message.held) == self.held[message.handoff], "each repetition holds the same"
                    self.back.append(encode(message))
                case RoomWanted(key, wanted):
                    assert wanted.receiver == self.decode, "it was meant for another life"
                    self.wanted.append(key)
                    self.heard.add(key)
                case Landed():
                    self.land(move)
                case Dropped(key, reason, owned):
                    event(f"receiver: {reason}")
                    assert key not in self.dropped and owned == (key in self.landed)
                    self.dropped[key] = move
                    assert owned or not self.may_write(key), "a sender may still write into blocks that are free now"
                    blocks = self.target_blocks.pop(key, [])
                    self.scribble(self.target, blocks)
                    self.free += blocks
                case _:
                    raise AssertionError(move)

    def may_write(self, key: HandoffKey) -> bool:
        """Whether a sender knows a handoff's blocks, or will by a message on its way, and has not stopped."""
        sender = self.senders.handoffs.get(key.handoff)
        if sender is None or key.sender != self.prefill or self.memory_of != self.decode:
            return False
        told = [each for each in map(decode_to_prefill, self.back) if isinstance(each, Grant) and each.blocks]
        knows = sender.granted or any(each.handoff == key.handoff for each in told)
        return bool(knows) and sender.state in (PrefillHandoffState.OPENING, PrefillHandoffState.STREAMING)

    def land(self, landed: Landed) -> None:
        """Checks that all bytes are there, and that only those that moved are counted."""
        key, number = landed.key, landed.key.handoff
        assert key not in self.landed and key not in self.dropped
        self.landed[key] = landed
        assert self.target.content(self.tables(number, self.target_blocks[key])) == self.expected[number]
        pushed = self.pushed.get((key.sender, number), {})
        assert landed.digests == pushed and landed.digest == sum(pushed.values()) % 2**64
        assert landed.bytes == len(self.moving[number]) * BLOCK_BYTES
        if key.sender == self.prefill:
            assert landed.commit.branches == self.branches[number]
        event(f"landed: {'one branch' if len(landed.commit.branches) == 1 else 'several branches'}")

    def scribble(self, pool: Pool, blocks: list[int]) -> None:
        for group, layer in pool.layers:
            pool.write(group, layer, blocks, [b"\xee" * BLOCK_BYTES * len(blocks)])

    # the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "senders"):
            return
        self.troubles = ()
        calm_since = self.now
        for number in range(HANDOFFS):
            self.finish(number, set())
        for _ in range(200):  # 20 s over a link that works
            self.writer_comes()
            self.writers_end_is_seen()
            self.time_passes(0.1)
            while self.wanted:
                self.grant()
            self.push_all()
            self.transmit_all()
            if not self.senders.handoffs and not self.waits():
                break
        assert not self.senders.handoffs, "the sender still has a handoff"
        assert not self.waits(), "the receiver still waits"
        assert set(self.closed) == self.unpinned == set(range(HANDOFFS))
        for number, end in self.closed.items():
            landed = self.landed.get(HandoffKey(self.prefill, number))
            event(f"sender: {end.outcome} {end.reason}")
            harmed = self.mishaps or number in self.cancelled or calm_since - self.begun > 4.0
            assert end.outcome == "accepted" or harmed, f"nothing went wrong, but {end}"
            if end.outcome == "accepted":
                assert landed is not None
                assert (end.digest, end.bytes, end.digests) == (landed.digest, landed.bytes, landed.digests)
            else:
                assert landed is None or self.lost, f"landed, but the sender says {end}"
        owned = {key for key, landed in self.landed.items() if landed.open.receiver == self.decode}
        assert set(self.target_blocks) == owned - set(self.dropped), "blocks are held by nobody"

    def transmit_all(self) -> None:
        while self.socket or self.channel or self.out or self.back or self.receivers._moved:
            self.send(0, ["arrive"] * (len(self.socket) + len(self.channel)))
            self.deliver(len(self.out))
            self.deliver_back(["arrive"] * len(self.back))
            self.push_all()

    def push_all(self) -> None:
        while not self.lost and (turn := self.senders.next_payload()) is not None and self.push_payload(*turn):
            pass

    def waits(self) -> bool:
        return any(receiver.state is not DecodeHandoffState.OWNED for receiver in self.receivers.handoffs.values())


HandoffMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target),
)
TestHandoff = HandoffMachine.TestCase
