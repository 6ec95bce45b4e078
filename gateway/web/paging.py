"""Reads the page size of a list from a query."""

import re
from collections.abc import Mapping

from gateway.errors import invalid

_NUMBER_REGEX = re.compile(r"[0-9]{1,9}")


def page_size(query: Mapping[str, str], most: int, usual: int | None = None) -> int:
    """Returns `limit` of a query, in entries; without it `usual`, or else `most`. Raises `APIError` above `most`."""
    given = query.get("limit", f"{usual or most}")
    if not _NUMBER_REGEX.fullmatch(given) or not 1 <= int(given) <= most:
        raise invalid(f"limit: {given[:64]!r} is no number from 1 to {most}", "limit")
    return int(given)
