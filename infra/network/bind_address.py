"""The address that a process binds, and the address that it advertises to others."""

from typing import NamedTuple

WILDCARD_ADDRESSES = ("0.0.0.0", "::")  # bind addresses for all interfaces, to which no peer can connect


class BindAddress(NamedTuple):
    """The address to bind, the host to advertise, and the ports to bind; no ports: the system chooses."""

    host: str = "127.0.0.1"
    advertised: str = "127.0.0.1"
    ports: range = range(0)

    def endpoint(self, port: int) -> str:
        return endpoint(self.advertised, port)


LOOPBACK_ADDRESS = BindAddress()


def endpoint(host: str, port: int | str) -> str:
    """Returns `tcp://host:port`, an IPv6 address in brackets."""
    return f"tcp://{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def bare(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def lacks_brackets(url: str) -> bool:
    """Whether a URL's host is an IPv6 address without brackets."""
    hosts = url.partition("://")[2].partition("/")[0].rpartition("@")[2].split(",")
    return any(host.count(":") > 1 and not host.startswith("[") for host in hosts)
