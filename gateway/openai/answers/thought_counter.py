"""Counts the tokens of a model's thoughts before its answer."""

from collections.abc import Sequence

from gateway.output.parts import Part, Reasoning


class ThoughtCounter:
    """Counts thoughts in all choices of a request. `end` is the token that ends them; None: they are not counted."""

    def __init__(self, end: int | None, choices: int) -> None:
        self._end = end
        self._counts = [0] * choices
        self._over = [False] * choices
        self._any = [False] * choices

    def add(self, choice: int, parts: Sequence[Part], token_ids: Sequence[int]) -> None:
        if self._end is None or self._over[choice]:
            return
        self._any[choice] = self._any[choice] or any(isinstance(part, Reasoning) for part in parts)
        self._over[choice] = self._end in token_ids
        self._counts[choice] += token_ids.index(self._end) if self._over[choice] else len(token_ids)

    def total(self) -> int | None:
        """Returns the number of tokens of all thoughts, or None if they cannot be counted."""
        if self._end is None:
            return None
        return sum(count for count, any in zip(self._counts, self._any, strict=True) if any)
