"""Keeps what a supervisor shows, where there is no terminal: for those who ask the actor or the controller."""

import io
from collections import deque

from launcher.stages import Stages

KEPT = 200  # sentences


class Said:
    """Keeps the last sentences, and counts all of them, so that each listener hears each once."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=KEPT)
        self.count = 0

    def say(self, sentence: str) -> None:
        """Adds a sentence."""
        self._last.append(sentence)
        self.count += 1

    def since(self, heard: int) -> tuple[str, ...]:
        """Returns the sentences behind the first `heard`, as far as they are kept."""
        new = min(self.count - heard, len(self._last)) if 0 <= heard <= self.count else len(self._last)
        return tuple(self._last)[len(self._last) - new :]


class Told(Stages):
    """Holds the stage of the one process that a supervisor runs, and its sentences."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.said = Said()
        self.stage = "starting"
        self.percent: int | None = None

    def show(self, name: str, text: str, percent: int | None = None, note: str = "") -> None:
        """Keeps the stage."""
        self.stage, self.percent = text, percent

    def say(self, sentence: str) -> None:
        """Keeps the sentence."""
        self.said.say(sentence)
