"""Chooses the address that a worker binds and the address it advertises: by interface, by network, or as given."""

import re
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address, ip_address, ip_network

from contracts.errors import ConfigError
from infra.config.place import PlaceOptions
from infra.network.bind_address import WILDCARD_ADDRESSES, BindAddress, bare
from infra.network.interfaces import IPAddress, OwnAddress, described
from infra.network.ports import parse_ports

HOST_NAME_PATTERN = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
Resolve = Callable[[str], str | None]  # returns the IPv4 address of a host name; None if it has none.


def resolve(name: str) -> str | None:
    """Resolves a host name with the system's resolver."""
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return None


def choose_bind_address(options: PlaceOptions, own: Sequence[OwnAddress], resolve: Resolve = resolve) -> BindAddress:
    """Returns what to bind and what to advertise on a host with the addresses `own`.

    Raises `ConfigError` if no other host could connect; it lists the host's addresses where one is missing.
    """
    host, ports = bare(options.host), parse_ports(options.ports)
    if host:
        _check_host(options.host, host, own)
    if options.announce:
        announced, ours = _announced(options.announce, host, own, resolve)
        if not host and not ours:
            why = "is no address of this host, which has {}; --host says what to listen on"
            raise ConfigError("--announce", options.announce, why.format(described(own)))
        return BindAddress(host or ours, announced, ports)
    if host in WILDCARD_ADDRESSES:
        why = f"no other host can connect to it; --announce sets the address for other hosts: {described(own)}"
        raise ConfigError("--host", options.host, why)
    return BindAddress(host, host, ports) if host else BindAddress(ports=ports)


def _check_host(given: str, host: str, own: Sequence[OwnAddress]) -> None:
    ip = _ip(host)
    if ip is None:
        raise ConfigError("--host", given, f"is no address; this host has {described(own)}")
    if host not in WILDCARD_ADDRESSES and not _is_own(ip, own):
        raise ConfigError("--host", given, f"is no address of this host, which has {described(own)}")


def _announced(given: str, host: str, own: Sequence[OwnAddress], resolve: Resolve) -> tuple[str, str]:
    """Returns the host to advertise, and which of this host's addresses it is; empty if none."""
    announce = bare(given)
    if "/" in announce:
        return (_first(given, host, _within(given, own)),) * 2
    if any(each.interface == announce for each in own):
        return (_first(given, host, _on(given, announce, own)),) * 2
    ip = _ip(announce)
    if ip is not None:
        if announce in WILDCARD_ADDRESSES:
            raise ConfigError("--announce", given, "no other host can connect to it")
        return announce, _first(given, host, [ip]) if _is_own(ip, own) else ""
    if HOST_NAME_PATTERN.fullmatch(announce) is None:
        why = "is no interface, network such as 10.0.0.0/8, address or host name; --ports is for ports"
        raise ConfigError("--announce", given, why)
    found = resolve(announce)
    if found is None:
        why = f"is no interface of this host, which has {described(own)}, and no host name that has an IPv4 address"
        raise ConfigError("--announce", given, why)
    ours = ip_address(found)
    return announce, found if _usable(ours) and _is_own(ours, own) else ""  # Debian resolves its own name to 127.0.1.1


def _within(given: str, own: Sequence[OwnAddress]) -> list[IPAddress]:
    try:
        network = ip_network(bare(given), strict=False)
    except ValueError:
        raise ConfigError("--announce", given, "is no network such as 10.0.0.0/8 or fd00::/8") from None
    usable = [each.ip for each in own if _usable(each.ip) or network.is_loopback]
    found = [ip for ip in usable if ip in network]
    if not found:
        raise ConfigError("--announce", given, f"no address of this host is in it: it has {described(own)}")
    return found


def _on(given: str, interface: str, own: Sequence[OwnAddress]) -> list[IPAddress]:
    """Returns an interface's addresses, IPv4 first."""
    found = [each.ip for each in own if each.interface == interface]
    usable = [ip for ip in found if _usable(ip)] or [ip for ip in found if ip.is_loopback]
    if not usable:
        why = "has no address that others can connect to: {}".format(", ".join(map(str, found)))
        raise ConfigError("--announce", given, why)
    return sorted(usable, key=lambda ip: ip.version)


def _first(given: str, host: str, found: Sequence[IPAddress]) -> str:
    for ip in found:
        if host in ("", "::", str(ip)) or (host == "0.0.0.0" and ip.version == 4):
            return str(ip)
    raise ConfigError("--announce", given, f"is {found[0]} here, where --host {host} does not listen")


def _usable(ip: IPAddress) -> bool:
    return not ip.is_loopback and not ip.is_link_local


def _is_own(ip: IPAddress, own: Sequence[OwnAddress]) -> bool:
    return any(each.ip == ip for each in own) or (ip.is_loopback and not isinstance(ip, IPv6Address))


def _ip(text: str) -> IPAddress | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
