"""Makes all ZeroMQ sockets of Baton, with every bound and time-out written out.

Only workers bind. Routers refuse messages that they cannot deliver (ROUTER_MANDATORY); dealers queue only for an open
connection (IMMEDIATE). Only payload sockets linger after a close, for `PAYLOAD_LINGER_MS`. Sends never block: a full
queue is `False`.

Control sockets encrypt and authenticate with CURVE (ZeroMQ RFC 26). Payload sockets only authenticate (PLAIN), since
payloads are sealed separately. Both refuse every peer unless their context has a `Gatekeeper`
(`infra.network.gatekeeper`). A refused dealer never connects: its sends are refused, and waiting for its peer ends at a
deadline.
"""

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path

import zmq
import zmq.asyncio

from contracts.errors import ConfigError
from infra.network.bind_address import BindAddress, endpoint
from infra.network.curve_keys import CurveKeys

CONTROL_DOMAIN, PAYLOAD_DOMAIN = "control", "kv"  # ZAP domains
QUEUE_MESSAGES = 4096  # per peer and direction; credit bounds the memory, not this number
TOKEN_QUEUE_MESSAGES = (
    64  # token messages per gateway, at either end; further tokens wait in the worker's ledger, where they are merged
)
TOKEN_BUFFER_BYTES = 32 << 10  # system buffer of token sockets; the default holds megabytes of small messages
MAX_MESSAGE_BYTES = 8 << 20  # fits a prompt of a million tokens; a larger message closes the connection
MAX_PAYLOAD_BYTES = 32 << 20  # settings allow half of it
PAYLOAD_QUEUE_MESSAGES = 256  # received payloads waiting to be read
COPY_BELOW_BYTES = 64 << 10  # smaller frames are copied even in zero-copy sends
KEEPALIVE_SECONDS = 2  # TCP keepalive, to notice connections that are silently gone
KEEPALIVE_PROBES = 2
CONNECT_MS = 5000  # until a connection attempt is repeated; the system would wait up to minutes
PAYLOAD_LINGER_MS = 100
"""A closed payload socket lingers this long. Otherwise libzmq 4.3 aborts the process (session_base.cpp, clean_pipes) if
the connection breaks in the middle of a multipart message."""
Frame = bytes | memoryview


def router(context: zmq.asyncio.Context, bind: BindAddress, keys: CurveKeys) -> tuple[zmq.asyncio.Socket, str]:
    """Makes a bound control ROUTER. Returns it with the advertised endpoint, `tcp://host:port`.

    Raises `ConfigError` for a host that cannot be bound, and if all ports are in use.
    """
    return _bound_tcp(_curve_server(context, keys), bind)


def dealer(context: zmq.asyncio.Context, address: str, keys: CurveKeys) -> zmq.asyncio.Socket:
    """Makes a control DEALER to one life of a peer, with an identity that was never used before."""
    return _connected(_curve_client(context, keys), address)


def token_router(context: zmq.asyncio.Context, bind: BindAddress, keys: CurveKeys) -> tuple[zmq.asyncio.Socket, str]:
    """Makes the control ROUTER that sends tokens to gateways, with short queues. Raises `ConfigError`.

    Queued messages are sent as they are, one for each step; tokens that wait in the ledger are sent as one message.
    """
    socket = _curve_server(context, keys)
    socket.setsockopt(zmq.SNDHWM, TOKEN_QUEUE_MESSAGES)
    socket.setsockopt(zmq.SNDBUF, TOKEN_BUFFER_BYTES)
    return _bound_tcp(socket, bind)


def token_dealer(context: zmq.asyncio.Context, address: str, keys: CurveKeys) -> zmq.asyncio.Socket:
    """Makes the gateway's DEALER for tokens."""
    socket = _curve_client(context, keys)
    socket.setsockopt(zmq.RCVHWM, TOKEN_QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVBUF, TOKEN_BUFFER_BYTES)
    return _connected(socket, address)


def payload_router(context: zmq.asyncio.Context, bind: BindAddress) -> tuple[zmq.asyncio.Socket, str]:
    """Makes a bound payload ROUTER; the gatekeeper must expect its peers. Raises `ConfigError`."""
    return _bound_tcp(_plain_server(context), bind)


def payload_ipc_router(context: zmq.asyncio.Context, path: Path) -> tuple[zmq.asyncio.Socket, str]:
    """Makes a payload ROUTER on a Unix socket, `ipc://path`. Its owner unlinks the path.

    Raises `ConfigError` for a path that is too long or cannot be made.
    """
    return _bound_ipc(_plain_server(context), path)


def payload_dealer(
    context: zmq.asyncio.Context, address: str, identity: bytes, user: str, token: str
) -> zmq.asyncio.Socket:
    """Makes a payload DEALER. If the other end's gatekeeper does not expect it yet, it is refused for good."""
    socket = _dealer(context, identity, MAX_MESSAGE_BYTES)
    try:
        socket.setsockopt_string(zmq.PLAIN_USERNAME, user)
        socket.setsockopt_string(zmq.PLAIN_PASSWORD, token)
    except zmq.ZMQError:
        socket.close(0)
        raise
    return _connected(socket, address)


def send_now(socket: zmq.asyncio.Socket, frames: list[Frame]) -> bool:
    """Sends without blocking, copying. False: the peer's queue is full, or it is gone. Needs a running loop."""
    return _sent_now(socket.send_multipart(frames, flags=zmq.NOBLOCK))


async def try_send(socket: zmq.asyncio.Socket, frames: list[Frame]) -> bool:
    """`send_now` for callers that await; it never suspends."""
    return send_now(socket, frames)


def send_now_tracked(socket: zmq.asyncio.Socket, frames: list[Frame]) -> zmq.MessageTracker | None:
    """Sends without blocking or copying. None: not sent.

    The memory must not change until the tracker is done. The tracker covers all frames; the tracker of `send_multipart`
    covers only the last. Frames below 64 KiB are copied, which is faster, and done at once.
    """
    tracked = [zmq.Frame(frame, track=True, copy_threshold=COPY_BELOW_BYTES) for frame in frames]
    if not _sent_now(socket.send_multipart(tracked, flags=zmq.NOBLOCK, copy=False, track=True)):
        return None
    return zmq.MessageTracker(*tracked)


def _sent_now(attempt: Awaitable[object]) -> bool:
    """Whether a NOBLOCK send went out. Its future is done, unless it is queued behind a poll for writing."""
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


def _curve_server(context: zmq.asyncio.Context, keys: CurveKeys) -> zmq.asyncio.Socket:
    socket = _router(context, CONTROL_DOMAIN, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.server_secret)
    return socket


def _curve_client(context: zmq.asyncio.Context, keys: CurveKeys) -> zmq.asyncio.Socket:
    socket = _dealer(context, b"b" + os.urandom(15), MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server_public)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.client_public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.client_secret)
    return socket


def _plain_server(context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
    socket = _router(context, PAYLOAD_DOMAIN, MAX_PAYLOAD_BYTES)
    socket.setsockopt(zmq.RCVHWM, PAYLOAD_QUEUE_MESSAGES)
    socket.setsockopt(zmq.PLAIN_SERVER, 1)
    return socket


def _router(context: zmq.asyncio.Context, domain: str, largest: int) -> zmq.asyncio.Socket:
    socket = _bounded(context.socket(zmq.ROUTER), largest)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt_string(zmq.ZAP_DOMAIN, domain)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without it, peers that no ZAP domain covers would be admitted
    return socket


def _bound_tcp(socket: zmq.asyncio.Socket, bind: BindAddress) -> tuple[zmq.asyncio.Socket, str]:
    socket.setsockopt(zmq.IPV6, int(":" in bind.host))
    try:
        for port in bind.ports or ("*",):
            try:
                socket.bind(endpoint(bind.host, port))
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise ConfigError("--host", bind.host, f"cannot be bound: {error.strerror}") from None
            else:
                bound = str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
                return socket, bind.endpoint(int(bound.rpartition(":")[2]))
        text = f"{bind.ports.start}-{bind.ports.stop - 1}"
        raise ConfigError("--ports", text, "other processes have taken all of them")
    except ConfigError:
        socket.close(0)
        raise


def _bound_ipc(socket: zmq.asyncio.Socket, path: Path) -> tuple[zmq.asyncio.Socket, str]:
    why = ""
    if len(os.fsencode(path)) > zmq.IPC_PATH_MAX_LEN:
        why = f"is longer than the {zmq.IPC_PATH_MAX_LEN} bytes of a socket's path"
    else:
        try:
            socket.bind(f"ipc://{path}")
        except zmq.ZMQError as error:
            why = f"cannot be bound: {error.strerror}"
    if why:
        socket.close(0)
        raise ConfigError("--host", str(path), why)
    return socket, f"ipc://{path}"


def _dealer(context: zmq.asyncio.Context, identity: bytes, largest: int) -> zmq.asyncio.Socket:
    socket = _bounded(context.socket(zmq.DEALER), largest)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
    return socket


def _connected(socket: zmq.asyncio.Socket, address: str) -> zmq.asyncio.Socket:
    try:
        socket.setsockopt(zmq.IPV6, int("[" in address))  # with it set, host names would resolve to IPv6 first
        socket.connect(address)
    except zmq.ZMQError:
        socket.close(0)
        raise
    return socket


def _bounded(socket: zmq.asyncio.Socket, largest: int) -> zmq.asyncio.Socket:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, largest)
    # No ZeroMQ heartbeats: with them libzmq 4.3 aborts the process when a peer goes away while its queue here
    # is full (issues 3937 and 4364 of libzmq).
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_SECONDS)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_SECONDS)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    return socket
