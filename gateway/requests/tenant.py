"""Turns who a client is into a salt: KV is reused only among requests with the same salt.

The salt is a keyed hash (HMAC-SHA256, RFC 2104) of what the client identifies itself with, so that neither workers nor
whoever reads along learn a client's token, and nobody without the deployment's secret can make another's salt.
"""

import hashlib
import hmac

from gateway.keys.caller import Caller
from infra.network.sealing import derive_key

SALT_PURPOSE = "tenant salts"
SALT_DIGITS = 32  # hexadecimal digits of a salt


class Tenants:
    """Makes the salts of one deployment: the same ones on every gateway with the same secret."""

    def __init__(self, secret: bytes) -> None:
        self._key = derive_key(secret, SALT_PURPOSE)

    def salt(self, caller: Caller, cache_salt: str = "") -> str:
        """Returns 32 hex digits for a caller, a salt of the client's own, or both; "" where there is neither.

        All keys of a tenant give one salt. No unchecked token gives a tenant's, whatever it says.
        """
        whose = caller.tenant or caller.token
        if not whose and not cache_salt:
            return ""
        # The length in front keeps apart what only the whole of both has in common.
        said = b"%d:%s%s" % (len(whose.encode()), whose.encode(), cache_salt.encode())
        if caller.tenant:
            said = b"tenant " + said
        return hmac.new(self._key, said, hashlib.sha256).hexdigest()[:SALT_DIGITS]
