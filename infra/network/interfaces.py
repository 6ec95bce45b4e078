"""Lists the IP addresses of this host's interfaces with getifaddrs(3), in the system's order."""

import ctypes
import ctypes.util
import os
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

IPAddress = IPv4Address | IPv6Address
ADDRESS_AT = {socket.AF_INET: 4, socket.AF_INET6: 8}  # offset of the address in a sockaddr, bytes
MAX_ADDRESSES_SHOWN = 16


class OwnAddress(NamedTuple):
    """An address of this host, and its interface."""

    interface: str
    ip: IPAddress


class _Entry(ctypes.Structure):
    """The first fields of C's `struct ifaddrs`."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def own_addresses() -> list[OwnAddress]:
    """Returns the IPv4 and IPv6 addresses of all interfaces. Raises `OSError`."""
    libc: Any = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    libc.freeifaddrs.argtypes = [ctypes.POINTER(_Entry)]
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    found, entry = [], first
    try:
        while entry:
            if entry.contents.address and (ip := _ip(entry.contents.address)) is not None:
                found.append(OwnAddress(entry.contents.name.decode(), ip))
            entry = entry.contents.next
    finally:
        libc.freeifaddrs(first)
    return found


def _ip(sockaddr: int) -> IPAddress | None:
    """Reads the address of a `struct sockaddr`; None for other families, such as hardware addresses."""
    family = ctypes.c_ushort.from_address(sockaddr).value
    if family == socket.AF_INET:
        return IPv4Address(ctypes.string_at(sockaddr + ADDRESS_AT[socket.AF_INET], 4))
    if family == socket.AF_INET6:
        return IPv6Address(ctypes.string_at(sockaddr + ADDRESS_AT[socket.AF_INET6], 16))
    return None


def described(own: Sequence[OwnAddress]) -> str:
    more = f" and {len(own) - MAX_ADDRESSES_SHOWN} more" if len(own) > MAX_ADDRESSES_SHOWN else ""
    return ", ".join(f"{each.interface} {each.ip}" for each in own[:MAX_ADDRESSES_SHOWN]) + more
