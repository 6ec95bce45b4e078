"""Messages of rank 0 to another rank of its worker, over a stream of bytes, and the answers."""

import socket
from array import array
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from engine.parallel.device_handle import DeviceHandle
from engine.parallel.distributed import MeetingFile
from engine.parallel.shard import Shard
from engine.parallel.shared_memory import RankWires
from engine.plan import BlockMove, StepPlan, TreeKVMoves
from infra.config.engine import EngineConfig

LENGTH_BYTES = 4
MAX_RECEIVED_BYTES = 1 << 20
MAX_DESCRIPTORS = 16


class LoadShard(Struct, frozen=True, tag=True):
    """Load this shard of the model, and send `LOADED`; the file descriptors of wires are inherited."""

    config: EngineConfig
    shard: Shard
    threads: int
    link: RankWires | MeetingFile  # to the other ranks


class MakePool(Struct, frozen=True, tag=True):
    """Make a pool: in memory whose descriptors come with the message, one for each KV group.

    A rank on a GPU makes it in the memory of its GPU, and sends `PoolHandles`.
    """

    counts: list[int]
    slots: int  # of the host tier


class ReportSpare(Struct, frozen=True, tag=True):
    """Send the `Spare` bytes of this rank's GPU."""


class Move(Struct, frozen=True, tag=True):
    moves: list[BlockMove]


class MoveTokens(Struct, frozen=True, tag=True):
    moves: list[TreeKVMoves]


class RecordSteps(Struct, frozen=True, tag=True):
    """Record decode steps of texts of up to `longest` tokens."""

    longest: int


class Launch(Struct, frozen=True, tag=True):
    plan: StepPlan
    recorded: bool


class Propose(Struct, frozen=True, tag=True):
    """Propose draft tokens after a launched step that gave these tokens, then wait for the other ranks."""

    step: int
    tokens: list[list[int]]
    accepted: dict[int, list[int]]


class ReadAdapter(Struct, frozen=True, tag=True):
    """Load an adapter, and send an `AdapterAnswer`."""

    directory: str


class FreeAdapter(Struct, frozen=True, tag=True):
    digest: str


class AdapterAnswer(Struct, frozen=True, tag=True):
    digest: str = ""
    problem: str = ""  # a sentence, if the adapter was not loaded


class PoolHandles(Struct, frozen=True, tag=True):
    handles: list[DeviceHandle]  # by KV group


class Spare(Struct, frozen=True, tag=True):
    """Memory that weights and steps leave to KV blocks on a rank's GPU."""

    bytes: int


StepOrder = Move | MoveTokens | Launch | Propose
Order = LoadShard | MakePool | ReportSpare | RecordSteps | ReadAdapter | FreeAdapter | StepOrder
Answer = AdapterAnswer | PoolHandles | Spare
JOINING, LOADED = b"\2", b"\1"
"""Bytes that a rank sends before it waits for the others at a `MeetingFile`, and when it has loaded the model."""
_ENCODER = msgspec.msgpack.Encoder(enc_hook=array.tolist)  # token ids of a prompt's chunk are an array
_DECODER: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def send(stream: socket.socket, order: Order | Answer, descriptors: Sequence[int] = ()) -> None:
    """Raises `OSError` if the other end is gone."""
    body = _ENCODER.encode(order)
    length = len(body).to_bytes(LENGTH_BYTES, "big")
    sent = socket.send_fds(stream, [length], descriptors)
    stream.sendall(length[sent:] + body)


def received(stream: socket.socket) -> Iterator[tuple[Order, list[int]]]:
    """Yields orders with their descriptors, until the other end closes the stream."""
    while True:
        length, descriptors, _, _ = socket.recv_fds(stream, LENGTH_BYTES, MAX_DESCRIPTORS)
        if not length:
            return
        length = _exactly(stream, LENGTH_BYTES, length)
        yield _DECODER.decode(_exactly(stream, int.from_bytes(length, "big"))), descriptors


def receive_answer(stream: socket.socket) -> Answer | None:
    """Returns None at the end of the stream."""
    length = _exactly(stream, LENGTH_BYTES)
    return _ANSWERS.decode(_exactly(stream, int.from_bytes(length, "big"))) if length else None


def _exactly(stream: socket.socket, count: int, begun: bytes = b"") -> bytes:
    """Returns `count` bytes, `begun` among them; fewer at the end of the stream."""
    found = bytearray(begun)
    while len(found) < count and (piece := stream.recv(min(count - len(found), MAX_RECEIVED_BYTES))):
        found += piece
    return bytes(found)
