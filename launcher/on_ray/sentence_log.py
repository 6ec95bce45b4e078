"""Records the sentences and the stage of a supervisor without a terminal, for calls of the actor or the controller."""

import io
from collections import deque

from launcher.stages import StageDisplay

MAX_SENTENCES = 200


class SentenceLog:
    """The last sentences, and the number of all, by which each listener reads each sentence once."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=MAX_SENTENCES)
        self.count = 0

    def say(self, sentence: str) -> None:
        self._last.append(sentence)
        self.count += 1

    def since(self, heard: int) -> tuple[str, ...]:
        """Returns the sentences after the first `heard`; the oldest may be lost."""
        new = min(self.count - heard, len(self._last)) if 0 <= heard <= self.count else len(self._last)
        return tuple(self._last)[len(self._last) - new :]


class RecordedStages(StageDisplay):
    """The stage and the sentences of the process that a supervisor runs."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.said = SentenceLog()
        self.stage = "starting"
        self.percent: int | None = None

    def show(self, name: str, text: str, percent: int | None = None, note: str = "") -> None:
        self.stage, self.percent = text, percent

    def say(self, sentence: str) -> None:
        self.said.say(sentence)
