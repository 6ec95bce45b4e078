"""Prints start-up lines: one per stage, updated in place on a terminal, or else a line per change.

Only the standard library: `installing/install.py` shows its progress with it before anything is installed.
"""

import shutil
import sys
import time
from contextlib import suppress
from typing import TextIO

PROGRESS_STEP_PERCENT = 25  # between two lines of one stage, where output is no terminal
NAME_COLUMNS = 20
REDRAW_PERIOD_S = 0.1


class StageDisplay:
    """Shows the progress of each stage; without a terminal, a line only for a new stage or a further step."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._live = out.isatty()
        self._lines: dict[str, str] = {}
        self._shown: dict[str, tuple[str, int]] = {}
        self._drawn = 0
        self._drawn_at = 0.0

    def show(self, name: str, text: str, percent: int | None = None, note: str = "") -> None:
        """Sets the line of `name`: text, percent and note. A new note alone prints no line without a terminal."""
        line = " ".join(part for part in (text, "" if percent is None else f"{percent}%", note) if part)
        if self._lines.get(name) == line:
            return
        self._lines[name] = line
        if self._live:
            # A new or finished stage is drawn at once, progress at most ten times a second.
            self._draw(forced=percent is None and not note)
            return
        news = (text, (percent or 0) // PROGRESS_STEP_PERCENT)
        if self._shown.get(name) != news:
            self._shown[name] = news
            self._write(f"{name:<{NAME_COLUMNS}} {line}\n")

    def say(self, sentence: str) -> None:
        """Prints a sentence below the stages, which are then no longer updated in place."""
        self.settle()
        self._write(sentence + "\n")

    def settle(self) -> None:
        """Leaves the lines as they are; later stages start below."""
        if self._live and self._lines:
            self._draw(forced=True)
        self._lines.clear()
        self._shown.clear()
        self._drawn = 0

    def _draw(self, forced: bool) -> None:
        now = time.monotonic()
        if not forced and now - self._drawn_at < REDRAW_PERIOD_S:
            return
        self._drawn_at = now
        columns = shutil.get_terminal_size().columns
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        rows = (f"\x1b[2K{name:<{NAME_COLUMNS}} {line}"[: columns + 3] for name, line in self._lines.items())
        self._write("\r" + up + "".join(row + "\n" for row in rows))
        self._drawn = len(self._lines)

    def _write(self, text: str) -> None:
        """Writes. A closed terminal or a broken pipe must not stop the services."""
        with suppress(OSError):
            self._out.write(text)
            self._out.flush()
