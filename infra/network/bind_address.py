"""Says where a process's listening sockets are bound, and by which address others reach them."""

from typing import NamedTuple

WILDCARD_ADDRESSES = ("0.0.0.0", "::")
"""What is listened on where it is all addresses; nobody can connect to it."""


class BindAddress(NamedTuple):
    """Holds the address to bind, the host that others use, and the ports to bind: empty if the system chooses."""

    host: str = "127.0.0.1"
    announced: str = "127.0.0.1"
    ports: range = range(0)

    def told(self, port: int) -> str:
        """Returns the endpoint that others connect to."""
        return endpoint(self.announced, port)


LOOPBACK_ADDRESS = BindAddress()


def endpoint(host: str, port: int | str) -> str:
    """Returns `tcp://host:port`, an IPv6 address in brackets."""
    return f"tcp://{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """Returns a host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def bare(host: str) -> str:
    """Returns a host without the brackets that an IPv6 address may have."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def lacks_brackets(url: str) -> bool:
    """Tells whether a URL's host is an IPv6 address without the brackets that part it from a port."""
    hosts = url.partition("://")[2].partition("/")[0].rpartition("@")[2].split(",")
    return any(host.count(":") > 1 and not host.startswith("[") for host in hosts)
