"""Turns a client's identity into a salt: KV is reused only among requests with the same salt.

The salt is a keyed hash (HMAC-SHA256, RFC 2104) of the client's identity, so that neither workers nor eavesdroppers
learn a client's token, and a client without the deployment's secret cannot compute another client's salt.
"""

import hashlib
import hmac

from gateway.keys.caller import Caller
from infra.network.sealing import derive_key

SALT_PURPOSE = "tenant salts"
SALT_DIGITS = 32  # hexadecimal digits of a salt


class Tenants:
    """Computes the salts of one deployment: all gateways with the same secret compute the same salts."""

    def __init__(self, secret: bytes) -> None:
        self._key = derive_key(secret, SALT_PURPOSE)

    def salt(self, caller: Caller, cache_salt: str = "") -> str:
        """Returns 32 hex digits for a caller, a salt of the client's own, or both; "" without either.

        All keys of a tenant give one salt. An unchecked token never gives a tenant's salt.
        """
        whose = caller.tenant or caller.token
        if not whose and not cache_salt:
            return ""
        # The length in front separates pairs whose concatenations are equal.
        said = b"%d:%s%s" % (len(whose.encode()), whose.encode(), cache_salt.encode())
        if caller.tenant:
            said = b"tenant " + said
        return hmac.new(self._key, said, hashlib.sha256).hexdigest()[:SALT_DIGITS]
