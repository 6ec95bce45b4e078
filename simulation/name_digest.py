"""Digests of names, in place of a tenant's salt and of an adapter's content."""

import hashlib
from functools import cache

DIGEST_BYTES = 16


@cache
def name_digest(name: str) -> str:
    """Returns 32 hexadecimal digits, as handoffs carry; empty for no name."""
    return hashlib.blake2b(name.encode(), digest_size=DIGEST_BYTES).hexdigest() if name else ""
