"""Counts the tokens with which a model thinks before it answers."""

from collections.abc import Sequence

from gateway.output.parts import Part, Reasoning


class ThoughtCounter:
    """Counts the thoughts of a request's choices. `end` is the token behind them; None: they cannot be told apart."""

    def __init__(self, end: int | None, choices: int) -> None:
        self._end = end
        self._counts = [0] * choices
        self._over = [False] * choices
        self._any = [False] * choices

    def add(self, choice: int, parts: Sequence[Part], token_ids: Sequence[int]) -> None:
        """Adds what has come of a choice."""
        if self._end is None or self._over[choice]:
            return
        self._any[choice] = self._any[choice] or any(isinstance(part, Reasoning) for part in parts)
        self._over[choice] = self._end in token_ids
        self._counts[choice] += token_ids.index(self._end) if self._over[choice] else len(token_ids)

    def total(self) -> int | None:
        """Returns the tokens of all thoughts, or None if that is not known."""
        if self._end is None:
            return None
        return sum(count for count, any in zip(self._counts, self._any, strict=True) if any)
