"""Binds HTTP listeners before slow parts of a start, so that a port in use is reported at once."""

import errno
import socket

from contracts.errors import ConfigError
from infra.network.bind_address import bare, bracketed

LISTEN_BACKLOG = 2048
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def listen(host: str, port: int, option: str = "--port", shared: bool = False) -> socket.socket:
    """Makes a listening, non-blocking socket. Raises `ConfigError` that names `--host`, or `option` for the port.

    With `shared`, processes of one user share the port, and the system spreads new connections over the listening ones.
    Such a socket is bound but does not listen yet, so that a process gets no connections before it can answer.
    """
    try:
        found = socket.getaddrinfo(bare(host) or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError("--host", host, f"cannot be resolved: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # `::` accepts IPv4 connections too
        listener.bind(address)
        if not shared:
            listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError("--host", host, "is no address of this host") from None
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(option, port, f"another process uses this port; {option} takes another") from None
        raise ConfigError(option, port, f"cannot be listened on at {host}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, tls: bool = False) -> str:
    """Returns a listener's URL for clients on this host."""
    host, port = listener.getsockname()[:2]
    return http_url(host, port, tls)


def http_url(host: str, port: int, tls: bool = False) -> str:
    """Returns the URL of a server that listens on `host`, for clients on this host."""
    address = bracketed(ANY_ADDRESS.get(bare(host), bare(host)))
    return f"http{'s' * tls}://{address}:{port}"


def is_local(host: str) -> bool:
    return host == "localhost" or bare(host) == "::1" or host.startswith("127.")
