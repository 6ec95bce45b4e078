"""Prints start-up lines: one per stage, updated in place on a terminal, or else a line per change.

Only the standard library: `installing/install.py` shows its progress with it before anything is installed.
"""

import shutil
import sys
import time
from contextlib import suppress
from typing import TextIO

STEP = 25  # percent between two lines of one stage where lines cannot be updated in place
WIDTH = 20  # columns of a stage's name
REDRAW_SECONDS = 0.1


class Stages:
    """Shows how far each stage is. Where output is no terminal, a line appears only when there is news."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._live = out.isatty()
        self._lines: dict[str, str] = {}
        self._told: dict[str, tuple[str, int]] = {}
        self._drawn = 0
        self._drawn_at = 0.0

    def show(self, name: str, text: str, percent: int | None = None, note: str = "") -> None:
        """Sets the line of `name`; `percent` is shown behind the text, and `note`, which is no news by itself."""
        line = " ".join(part for part in (text, "" if percent is None else f"{percent}%", note) if part)
        if self._lines.get(name) == line:
            return
        self._lines[name] = line
        if self._live:
            # A stage that is new or done is drawn at once; progress at most ten times a second.
            self._draw(forced=percent is None and not note)
            return
        news = (text, (percent or 0) // STEP)
        if self._told.get(name) != news:
            self._told[name] = news
            self._write(f"{name:<{WIDTH}} {line}\n")

    def say(self, sentence: str) -> None:
        """Prints a sentence below the stages, which are then no longer updated in place."""
        self.settle()
        self._write(sentence + "\n")

    def settle(self) -> None:
        """Leaves the lines as they are; later stages start below."""
        if self._live and self._lines:
            self._draw(forced=True)
        self._lines.clear()
        self._told.clear()
        self._drawn = 0

    def _draw(self, forced: bool) -> None:
        now = time.monotonic()
        if not forced and now - self._drawn_at < REDRAW_SECONDS:
            return
        self._drawn_at = now
        columns = shutil.get_terminal_size().columns
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        rows = (f"\x1b[2K{name:<{WIDTH}} {line}"[: columns + 3] for name, line in self._lines.items())
        self._write("\r" + up + "".join(row + "\n" for row in rows))
        self._drawn = len(self._lines)

    def _write(self, text: str) -> None:
        """Writes, if somebody reads: a terminal that was closed, or a broken pipe, is no reason to stop serving."""
        with suppress(OSError):
            self._out.write(text)
            self._out.flush()
