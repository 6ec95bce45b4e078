"""Settings of a worker's addresses: bind address, advertised address, ports and node."""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.kinds import Address


class PlaceOptions(Struct, frozen=True, kw_only=True):
    """A worker's bind address, advertised address, and location."""

    host: Annotated[
        Address,
        Meta(
            description="address to listen on, IPv4 or IPv6; all addresses of this host with 0.0.0.0 or ::; empty: the "
            "address of --announce, or else 127.0.0.1"
        ),
    ] = ""
    announce: Annotated[
        Address,
        Meta(
            max_length=253,
            description="address that this worker advertises to others, if it differs from --host: an interface "
            "(eth0), a network that contains an address of this host (10.0.0.0/8, fd00::/8), an address, "
            "or a host name with an IPv4 address",
        ),
    ] = ""
    ports: Annotated[
        str,
        Meta(
            extra={"metavar": "PORTS"},
            description="ports to listen on, such as 20000-20100; a prefill worker takes one of them, a decode worker "
            "three; empty: chosen by the system",
        ),
    ] = ""
    node_label: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME"},
            max_length=63,
            description="location of this worker, such as a rack or a zone: KV transfers between workers with equal "
            "labels are preferred; empty: NODE_NAME of the environment",
        ),
    ] = ""
