"""Messages of rank 0 to another rank of its group, over a stream of bytes."""

import socket
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from engine.parallel.shard import Shard
from engine.plan import BlockMove, StepPlan
from infra.config.engine import EngineConfig

LENGTH_BYTES = 4
MAX_RECEIVED_BYTES = 1 << 20


class LoadShard(Struct, frozen=True, tag=True):
    """Load this shard of the model, and say `LOADED`; the file descriptors are inherited."""

    config: EngineConfig
    shard: Shard
    threads: int
    memory: int
    sockets: dict[int, int]  # by the other rank


class MakePool(Struct, frozen=True, tag=True):
    counts: list[int]


class Move(Struct, frozen=True, tag=True):
    moves: list[BlockMove]


class Launch(Struct, frozen=True, tag=True):
    plan: StepPlan


Order = LoadShard | MakePool | Move | Launch
LOADED = b"\1"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)


def send(stream: socket.socket, order: Order) -> None:
    """Raises `OSError` if the other end is gone."""
    body = _ENCODER.encode(order)
    stream.sendall(len(body).to_bytes(LENGTH_BYTES, "big") + body)


def received(stream: socket.socket) -> Iterator[Order]:
    """Yields orders until the other end closes the stream."""
    while length := _exactly(stream, LENGTH_BYTES):
        yield _DECODER.decode(_exactly(stream, int.from_bytes(length, "big")))


def _exactly(stream: socket.socket, count: int) -> bytes:
    """Returns `count` bytes; fewer at the end of the stream."""
    found = bytearray()
    while len(found) < count and (piece := stream.recv(min(count - len(found), MAX_RECEIVED_BYTES))):
        found += piece
    return bytes(found)
