"""Suggests the nearest known name for a misspelled one. Only the standard library: `./baton` asks before a set-up."""

from collections.abc import Iterable
from difflib import get_close_matches

MIN_LIKENESS = 0.6


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean NAME?)` for the nearest known name, or '' if none is near."""
    near = get_close_matches(name, sorted(known), cutoff=MIN_LIKENESS)
    near.sort(key=lambda each: sorted(each) != sorted(name))  # swapped letters first: --prot is --port and not --tpot
    return f" (did you mean {near[0]}?)" if near else ""
