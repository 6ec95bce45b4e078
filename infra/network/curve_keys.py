"""Derives the CURVE keys of control sockets from the deployment's secret.

The binding and the connecting end have a key pair each, so both ends prove that they know the secret.
"""

from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from contracts.errors import BatonError
from infra.network.sealing import derive_key

SERVER, CLIENT = "control link, binding end", "control link, connecting end"  # purposes of the derived keys


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """Two X25519 key pairs (RFC 7748), each key as 40 characters of Z85 (ZeroMQ RFC 32)."""

    server_public: bytes
    server_secret: bytes = field(repr=False)
    client_public: bytes
    client_secret: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> "CurveKeys":
        """Derives the keys from a secret. Raises `BatonError` if ZeroMQ has no CURVE."""
        if not zmq.has("curve"):
            raise BatonError(f"ZeroMQ {zmq.zmq_version()} was built without CURVE: install pyzmq's own wheel")
        server, client = (z85.encode(derive_key(secret, purpose)) for purpose in (SERVER, CLIENT))
        return cls(zmq.curve_public(server), server, zmq.curve_public(client), client)
