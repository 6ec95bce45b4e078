"""The one place that makes ZeroMQ sockets, with every bound and time-out written out.

Only workers bind. Routers refuse what they cannot deliver instead of dropping it (ROUTER_MANDATORY); dealers queue only
for a connection that stands (IMMEDIATE); nothing lingers after a close. Sends never block: a full queue is `False`.
"""

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path

import zmq
import zmq.asyncio

from core.errors import ConfigError

QUEUE = 4096  # messages per peer and direction; memory is bounded by credit, not by this
LARGEST = 64 << 20  # bytes of one frame; a larger one closes the connection
COPIED = 64 << 10  # bytes; smaller frames are copied even where copying was not asked for
HEARTBEAT_MS = 2000  # ZeroMQ's own, so that a connection that is silently gone is noticed
Frame = bytes | memoryview


def router(context: zmq.asyncio.Context, host: str) -> tuple[zmq.asyncio.Socket, str]:
    """A bound ROUTER on a port that the system chooses, and its endpoint `tcp://host:port`."""
    socket = _bounded(context.socket(zmq.ROUTER))
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        port = socket.bind_to_random_port(f"tcp://{host}")
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConfigError("--host", host, f"cannot be bound: {error.strerror}") from None
    return socket, f"tcp://{host}:{port}"


def ipc_router(context: zmq.asyncio.Context, path: Path) -> tuple[zmq.asyncio.Socket, str]:
    """A bound ROUTER on a Unix socket, and its endpoint `ipc://path`. Whoever closes it unlinks the path.

    Raises `ConfigError` for a path that is too long for the system or cannot be made.
    """
    if len(os.fsencode(path)) > zmq.IPC_PATH_MAX_LEN:
        raise ConfigError("--host", str(path), f"is longer than the {zmq.IPC_PATH_MAX_LEN} bytes of a socket's path")
    socket = _bounded(context.socket(zmq.ROUTER))
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        socket.bind(f"ipc://{path}")
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConfigError("--host", str(path), f"cannot be bound: {error.strerror}") from None
    return socket, f"ipc://{path}"


def dealer(context: zmq.asyncio.Context, endpoint: str) -> zmq.asyncio.Socket:
    """A DEALER to one life of one peer, with an identity that was never used before."""
    socket = _bounded(context.socket(zmq.DEALER))
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.IDENTITY, b"b" + os.urandom(15))
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    socket.connect(endpoint)
    return socket


def send_now(socket: zmq.asyncio.Socket, frames: list[Frame]) -> bool:
    """Sends now, copying, or returns False: the peer's queue is full, or the peer is gone. Needs the running loop."""
    return _sent_now(socket.send_multipart(frames, flags=zmq.NOBLOCK))


async def try_send(socket: zmq.asyncio.Socket, frames: list[Frame]) -> bool:
    """`send_now` for callers that await; it never suspends."""
    return send_now(socket, frames)


def send_now_tracked(socket: zmq.asyncio.Socket, frames: list[Frame]) -> zmq.MessageTracker | None:
    """Sends now without copying, or returns None.

    The memory must not change until the tracker is done. It watches every frame; the one that `send_multipart` itself
    returns watches the last frame only. Frames under 64 KiB are copied all the same, which is faster, and done at once.
    """
    tracked = [zmq.Frame(frame, track=True, copy_threshold=COPIED) for frame in frames]
    if not _sent_now(socket.send_multipart(tracked, flags=zmq.NOBLOCK, copy=False, track=True)):
        return None
    return zmq.MessageTracker(*tracked)


def _sent_now(attempt: Awaitable[object]) -> bool:
    """With NOBLOCK the future is done, unless somebody polls for writing: then the send was queued behind the poll."""
    assert isinstance(attempt, asyncio.Future)
    if not attempt.done():
        attempt.cancel()
        return False
    error = attempt.exception()
    if error is None:
        return True
    if isinstance(error, zmq.ZMQError) and error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
        return False
    raise error


def _bounded(socket: zmq.asyncio.Socket) -> zmq.asyncio.Socket:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE)
    socket.setsockopt(zmq.RCVHWM, QUEUE)
    socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    return socket
