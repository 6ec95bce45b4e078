"""Finds stop strings in text that arrives in pieces: no part of one is ever sent."""

from collections.abc import Sequence


class StopStrings:
    """Holds back the end of the text while it may be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would end every answer"
        self._stops = tuple(stops)
        self.any = bool(self._stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """Returns text that can be sent, and the stop string that was met; empty: none.

        The text ends before the stop string that ends first, so it does not depend on how it was cut into pieces.
        """
        if not self._stops:
            return text, ""
        text = self._held + text
        met = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if met:
            self._held = ""
            end, begin = min(met)
            return text[:begin], text[begin:end]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""

    def flush(self) -> str:
        """Returns what was held back: at the end of the answer it cannot become a stop string any more."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of `text` with which `stop` begins."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
