"""Reads the page size of a list from a query."""

import re
from collections.abc import Mapping

from gateway.errors import invalid

_NUMBER_REGEX = re.compile(r"[0-9]{1,9}")


def page_size(query: Mapping[str, str], max_entries: int, usual: int | None = None) -> int:
    """Returns the number of entries that a query asks for by `limit`; without it `usual`, or else `max_entries`.

    Raises `APIError` for a number above `max_entries`.
    """
    given = query.get("limit", f"{usual or max_entries}")
    if not _NUMBER_REGEX.fullmatch(given) or not 1 <= int(given) <= max_entries:
        raise invalid(f"limit: {given[:64]!r} is no number from 1 to {max_entries}", "limit")
    return int(given)
