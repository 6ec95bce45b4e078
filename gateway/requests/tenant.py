"""Turns who a client is into a salt: KV is reused only among requests with the same salt.

The salt is a keyed hash (HMAC-SHA256, RFC 2104) of what the client identifies itself with, so that neither workers nor
whoever reads along learn a client's token, and nobody without the deployment's secret can make another's salt.
"""

import hashlib
import hmac

from core.network.sealing import derive_key

PURPOSE = "tenant salts"
DIGITS = 32  # hexadecimal digits of a salt


class Tenants:
    """Makes the salts of one deployment: the same ones on every gateway with the same secret."""

    def __init__(self, secret: bytes) -> None:
        self._key = derive_key(secret, PURPOSE)

    def salt(self, authorization: str, cache_salt: str) -> str:
        """Returns 32 hex digits for a bearer token, a salt of the client's own, or both; "" where there is neither.

        `authorization` is the value of the header of this name.
        """
        scheme, _, token = authorization.strip().partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        if not token and not cache_salt:
            return ""
        # The length in front keeps apart what only the whole of both has in common.
        said = b"%d:%s%s" % (len(token.encode()), token.encode(), cache_salt.encode())
        return hmac.new(self._key, said, hashlib.sha256).hexdigest()[:DIGITS]
