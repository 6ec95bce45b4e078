"""Both sides of a link as pure state, and the memory that they read and write, for tests that choose what arrives.

What the socket and the channel hold still refers to the sender's memory; what is on the way is a copy. Blocks are
scribbled over as soon as the rules call them free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import event

from contracts.kv.spec import KVSpec
from contracts.messages.handoff import Branch, Grant, Layer, Remind, decode_to_decode, decode_to_prefill
from contracts.messages.wire import Addressed, encode
from infra.config.transfer import TransferConfig
from kvtransfer.digest import PayloadPlace, payload_digest
from kvtransfer.events import BlocksGranted, BlocksWanted, Closed, Dropped, Landed, LayerReady, Unpinned
from kvtransfer.handoff import HandoffKey, handoff_blocks
from kvtransfer.protocol.decode_handoff import DecodeHandoffState
from kvtransfer.protocol.decode_links import DecodeLinks
from kvtransfer.protocol.instructions import Instruction, Land, Lost, Send
from kvtransfer.protocol.prefill_events import FrameDone, OfHandoff
from kvtransfer.protocol.prefill_handoff import PrefillHandoff, PrefillHandoffState
from kvtransfer.protocol.prefill_link import PrefillLink
from tests.kvtransfer.world import BLOCK_BYTES, Pool, opened

HANDOFF_COUNT = 3
BLOCKS_PER_GROUP = 4  # of each handoff, in each KV group
LAYERS = (0, 1)


@dataclass
class Packet:
    """Holds one multipart message: bytes of the header, and the payload."""

    data: bytes
    link: bytes
    frames: list[memoryview] = field(default_factory=list)
    handoff: int = 0
    number: int = 0


class HandoffEnds:
    """A prefill and a decode side, the pools of both, and what is under way between them.

    The rules are checked as instructions are carried out: nobody reads or writes blocks that may be another's.
    """

    def __init__(
        self,
        config: TransferConfig,
        spec: KVSpec,
        cached: Sequence[int],
        samples: list[tuple[int, ...]],
        *,
        writes: bool,
    ) -> None:
        """`cached`: for each handoff, leading blocks that the decode side has. `writes`: the sender into its pool."""
        self.now = 0.0
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
        self.memory_of = ""  # the decode side's life whose pool this prefill side may write into
        self.ending: list[bytes] = []  # links whose writers have ended, which the decode side does not know yet
        self.config = config
        self.spec = spec
        self.target = Pool(spec, 64, seed=2)
        self.places = {layer: (at, layer) for at, group in enumerate(spec.groups) for layer in group.layers}
        self.needed = [handoff_blocks(spec, 4 * BLOCKS_PER_GROUP - number) for number in range(HANDOFF_COUNT)]
        # leading blocks of each handoff, by KV group, that the decode side holds already, or does not need
        self.held = [tuple([max(count, each.start) for each in self.needed[at]]) for at, count in enumerate(cached)]
        self.samples = samples
        self.writes = writes
        self.new_decode_life()
        self.new_prefill_life()

    def new_decode_life(self) -> None:
        """Starts a decode side; nothing is left of what an earlier one held."""
        self.decode_lives += 1
        self.out = []
        self.decode = f"decode-{self.decode_lives}"
        self.receivers = DecodeLinks(self.config, self.decode, self.spec, trace=True)
        for blocks in self.target_blocks.values():
            self.scribble(self.target, blocks)
            self.free += blocks
        self.target_blocks, self.wanted, self.heard = {}, [], set()
        self.ending = []

    def new_prefill_life(self) -> None:
        """Ends the prefill side, and starts another over its own link, with the next attempt at every request."""
        self.writer_ends()
        self.attempt += 1
        self.prefill = f"prefill-{self.attempt}"
        self.source = Pool(self.spec, 64, seed=1)
        self.senders = PrefillLink(self.config, self.prefill, self.decode, self.spec, trace=True)
        self.socket, self.channel = [], []
        self.source_blocks: dict[int, list[int]] = {}
        self.expected: dict[int, bytes] = {}
        self.moving: dict[int, set[tuple[int, int]]] = {}  # (layer, block) that the decode side lacks and needs
        self.branches: dict[int, list[Branch]] = {}  # as committed
        self.closed: dict[int, Closed] = {}
        self.unpinned: set[int] = set()
        self.lost = False
        self.begun = self.now
        for number in range(HANDOFF_COUNT):
            blocks = [number * BLOCKS_PER_GROUP + 1 + at for at in (2, 0, 1, 3)]
            self.source_blocks[number] = blocks
            self.expected[number] = self.source.content(self.tables(number, blocks))
            held = {layer: self.held[number][group] for group, layer in self.places.values()}
            self.moving[number] = {(layer, at) for layer in LAYERS for at in range(held[layer], len(blocks))}
            what = opened(
                4 * BLOCKS_PER_GROUP - number,
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

    def tick(self, seconds: float) -> None:
        self.now += seconds
        if not self.lost:
            self.sender_does(self.senders.tick(self.now))
        self.receiver_does(self.receivers.tick(self.now))

    def tell_sender(self, event: OfHandoff) -> None:
        self.sender_does(self.senders.handle(event, self.now))

    def layer_ready(self, number: int, layer: int, upto: int) -> None:
        self.tell_sender(LayerReady(number, *self.places[layer], upto))

    def grant(self) -> None:
        """Grants the blocks of the handoff that has waited longest, if they are free."""
        key = self.wanted.pop(0)
        if len(self.free) < BLOCKS_PER_GROUP:
            return
        if key in self.target_blocks or key in self.dropped or key in self.landed:
            return  # its Dropped came first
        blocks, self.free = self.free[:BLOCKS_PER_GROUP], self.free[BLOCKS_PER_GROUP:]
        held = self.held[key.handoff]
        event(f"granted: held {'none' if not any(held) else 'all' if min(held) == BLOCKS_PER_GROUP else 'some'}")
        fresh = Pool(self.spec, 64, seed=1)  # the prefill side's blocks may be in other use by now
        for group, layer in self.places.values():  # a prefix that is cached here already
            there = self.source_blocks[key.handoff][: held[group]]
            self.target.write(group, layer, blocks[: held[group]], fresh.read(group, layer, there))
        self.target_blocks[key] = blocks
        starts = [each.start for each in self.needed[key.handoff]]
        tables = tuple([[0] * start + blocks[start:] for start in starts])
        self.receiver_does(self.receivers.handle(BlocksGranted(key, tables, held), self.now))

    def writer_comes(self) -> None:
        """Gives the sender the memory of the pool, if the life that it knows is still there."""
        if self.writes and not self.memory_of and not self.lost and self.senders.ends[1] == self.decode:
            self.memory_of = self.decode
            self.receiver_does(self.receivers.writer_came(self.prefill.encode(), self.now))

    def writer_ends(self) -> None:
        if self.memory_of == self.decode:
            self.ending.append(self.prefill.encode())
        self.memory_of = ""

    def see_ended_writers(self) -> None:
        """Tells the decode side which writers into its pool have ended."""
        while self.ending:
            event("a writer ended")
            self.receiver_does(self.receivers.writer_gone(self.ending.pop(), self.now))

    def push_all(self) -> None:
        while not self.lost and (turn := self.senders.next_payload()) is not None and self.push_payload(*turn):
            pass

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
        self.sender_does(self.senders.payload_taken(sender, payload, digest, self.now))  # type: ignore[arg-type]
        return True

    def copy(self, packet: Packet) -> Packet:
        frames = [memoryview(bytes(view)) for view in packet.frames]
        if packet.frames:
            self.tell_sender(FrameDone(packet.handoff, packet.number))
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
                            self.tell_sender(FrameDone(packet.handoff, packet.number))
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
                case BlocksWanted(key, wanted):
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

    def waits(self) -> bool:
        return any(receiver.state is not DecodeHandoffState.OWNED for receiver in self.receivers.handoffs.values())
