"""The lines that a terminal shows, and those that a log of a terminal gets."""

import io
import os

import pytest

from launcher.stages import StageDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_line_appears_only_with_news() -> None:
    out = io.StringIO()
    stages = StageDisplay(out)
    for percent in (1, 2, 2, 30, 31, 99):
        stages.show("decode-0", "loading weights", percent)
    stages.show("decode-0", "ready")
    stages.show("decode-0", "ready")
    assert [line.split(None, 1)[1] for line in out.getvalue().splitlines()] == [
        "loading weights 1%",
        "loading weights 30%",
        "loading weights 99%",
        "ready",
    ]


def test_a_note_is_no_news() -> None:
    out = io.StringIO()
    stages = StageDisplay(out)
    for second in range(3):
        stages.show("pip", "downloading", note=f"({second} s)")
    assert out.getvalue().count("\n") == 1


def test_a_terminal_is_updated_in_place() -> None:
    out = Terminal()
    stages = StageDisplay(out)
    stages.show("redis", "ready")
    stages.show("decode-0", "starting")
    out.seek(0)
    out.truncate()
    stages.show("redis", "gone")
    assert out.getvalue().startswith("\r\x1b[2A\x1b[2Kredis")
    assert out.getvalue().count("\n") == 2
    stages.say("a sentence")
    assert out.getvalue().endswith("\na sentence\n")


def test_long_lines_do_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    StageDisplay(out).show("redis", "x" * 100)
    assert len(out.getvalue().strip().removeprefix("\x1b[2K")) < 40


def test_a_reader_that_went_away_does_no_harm() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = os.fdopen(writer, "w", buffering=1)
    stages = StageDisplay(out)
    stages.show("redis", "ready")
    stages.say("a sentence")
    with pytest.raises(BrokenPipeError):
        out.close()
