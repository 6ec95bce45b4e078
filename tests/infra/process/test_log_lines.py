"""What a service logs is bounded by statement, however often a statement is reached, and what is left out is told."""

import io
import logging
from collections.abc import Iterator

import pytest

from infra.process.log_lines import MAX_KINDS, MAX_LINES, WINDOW_S, BoundedLog, LineLimit


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.out = io.StringIO()
        self.handler = BoundedLog(self.out, lambda: self.now)
        self.log = logging.Logger("a part")
        self.log.addHandler(self.handler)

    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.handler.close()


def test_lines_are_limited_and_those_left_out_are_counted() -> None:
    limit = LineLimit(2, 10.0)
    assert [limit.take(now) for now in (0.0, 1.0, 2.0, 9.9)] == [0, 0, None, None]
    assert [limit.take(now) for now in (10.0, 11.0, 12.0, 25.0)] == [2, 0, None, 1]


def test_a_statement_writes_so_many_lines_and_tells_of_the_others(bench: Bench) -> None:
    for number in range(2 * MAX_LINES + 1):
        bench.now = WINDOW_S * (number // (2 * MAX_LINES))
        bench.log.info("request %d", number)
    assert bench.lines() == [
        *(f"request {number}" for number in range(MAX_LINES)),
        f"request {2 * MAX_LINES} ({MAX_LINES} such lines were left out before)",
    ]


def test_statements_do_not_crowd_each_other_out(bench: Bench) -> None:
    for number in range(2 * MAX_LINES):
        bench.log.info("many")
        if number == MAX_LINES:
            bench.log.warning("rare")
    assert bench.lines() == [*["many"] * MAX_LINES, "rare"]


def test_a_statement_has_kinds_where_it_says_so(bench: Bench) -> None:
    for number in range(4 * MAX_LINES):
        bench.log.info("%d", number, extra={"kind": ("one", "other")[number % 2]})
    assert bench.lines() == [str(number) for number in range(2 * MAX_LINES)]


def test_words_of_another_make_no_kinds_and_kinds_take_bounded_memory(bench: Bench) -> None:
    for number in range(3 * MAX_LINES):
        bench.log.info(f"made of {number}")
    assert len(bench.lines()) == MAX_LINES
    for number in range(MAX_KINDS + 5 * MAX_LINES):
        bench.log.info("x", extra={"kind": str(number)})
    assert len(bench.lines()) == MAX_LINES + (MAX_KINDS - 1) + MAX_LINES


def test_the_end_tells_what_was_left_out_last(bench: Bench) -> None:
    for _ in range(MAX_LINES + 3):
        bench.log.info("many")
    bench.handler.close()
    assert bench.lines()[-1] == "3 more lines were left out"


def test_a_line_that_cannot_be_formatted_raises_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with a log statement, its service goes on."""
    monkeypatch.setattr(logging, "raiseExceptions", False)  # it would only print a traceback
    for number in range(MAX_LINES + 2):
        bench.now = WINDOW_S * (number // (MAX_LINES + 1))
        bench.log.info("%d", "no number")
    assert bench.lines() == []


def test_each_line_for_debugging_is_written(bench: Bench) -> None:
    for _ in range(2 * MAX_LINES):
        bench.log.debug("a detail")
    assert len(bench.lines()) == 2 * MAX_LINES


def test_other_handlers_see_the_line_as_it_was(bench: Bench) -> None:
    seen: list[str] = []
    other = logging.Handler()
    other.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    bench.log.addHandler(other)
    for number in range(MAX_LINES + 2):
        bench.now = WINDOW_S * (number // (MAX_LINES + 1))
        bench.log.info("many")
    assert seen == ["many"] * (MAX_LINES + 2) and "left out" in bench.lines()[-1]
