"""Messages of rank 0 to another rank of its group, over a stream of bytes."""

import socket
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from engine.parallel.shard import Shard
from engine.plan import BlockMove, StepPlan
from infra.config.engine import EngineConfig

LENGTH_BYTES = 4
MAX_RECEIVED_BYTES = 1 << 20
MAX_DESCRIPTORS = 16


class LoadShard(Struct, frozen=True, tag=True):
    """Load this shard of the model, and say `LOADED`; the file descriptors are inherited."""

    config: EngineConfig
    shard: Shard
    threads: int
    memory: int
    sockets: dict[int, int]  # by the other rank


class MakePool(Struct, frozen=True, tag=True):
    """Make a pool in memory whose descriptors come with the message, one for each KV group."""

    counts: list[int]


class Move(Struct, frozen=True, tag=True):
    moves: list[BlockMove]


class RecordSteps(Struct, frozen=True, tag=True):
    """RecordSteps decode steps of texts of up to `longest` tokens."""

    longest: int


class Launch(Struct, frozen=True, tag=True):
    plan: StepPlan
    recorded: bool


class ReadAdapter(Struct, frozen=True, tag=True):
    """Load an adapter, and send an `AdapterAnswer`."""

    directory: str


class FreeAdapter(Struct, frozen=True, tag=True):
    digest: str


class AdapterAnswer(Struct, frozen=True):
    digest: str = ""
    problem: str = ""  # a sentence, if the adapter was not loaded


Order = LoadShard | MakePool | Move | RecordSteps | Launch | ReadAdapter | FreeAdapter
LOADED = b"\1"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_ANSWERS = msgspec.msgpack.Decoder(AdapterAnswer)


def send(stream: socket.socket, order: Order | AdapterAnswer, descriptors: Sequence[int] = ()) -> None:
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


def receive_answer(stream: socket.socket) -> AdapterAnswer | None:
    """Returns None at the end of the stream."""
    length = _exactly(stream, LENGTH_BYTES)
    return _ANSWERS.decode(_exactly(stream, int.from_bytes(length, "big"))) if length else None


def _exactly(stream: socket.socket, count: int, begun: bytes = b"") -> bytes:
    """Returns `count` bytes, `begun` among them; fewer at the end of the stream."""
    found = bytearray(begun)
    while len(found) < count and (piece := stream.recv(min(count - len(found), MAX_RECEIVED_BYTES))):
        found += piece
    return bytes(found)
