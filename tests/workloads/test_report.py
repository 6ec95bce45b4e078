"""Figures of a load, from outcomes that are known."""

import msgspec
import pytest

from contracts.slo import SLO, Timings
from workloads.figures import MAX_ERRORS_NAMED, OTHER_ERRORS, LoadFigures
from workloads.outcome import RequestOutcome
from workloads.report import Missed, Percentiles, Report, make_report, report_of, share_interval
from workloads.table import comparison, table

OUTCOMES = [
    RequestOutcome(0.0, 0.0, 0.5, Timings(100.0, 500.0, 41), (10.0, 30.0), 100, 40),
    RequestOutcome(0.5, 0.501, 3.9, Timings(3000.0, 3400.0, 41), (20.0,), 300),
    RequestOutcome(0.6, 0.6, 3.7, Timings(90.0, 3100.0, 11), (), 100),
    RequestOutcome(0.7, 0.7, 3.8, Timings(2100.0, 5100.0, 3)),
    RequestOutcome(0.8, 0.81, 4.0, error="status 500"),
]


def report() -> Report:
    return make_report(OUTCOMES, SLO(2000.0, 100.0), server="http://s", model="m", load={"--rate": "4"})


def test_counts_and_rates() -> None:
    made = report()
    assert (made.requests, made.answered, made.good, made.good_share) == (5, 4, 1, 0.2)
    assert made.missed == Missed(ttft=1, tpot=1, both=1) and made.errors == {"status 500": 1}
    assert (made.seconds, made.requests_per_s, made.goodput_per_s) == (4.0, 1.0, 0.25)
    assert (made.output_tokens_per_s, made.prompt_tokens_per_s, made.cached_share) == (24.0, 125.0, 0.08)
    assert made.itl_ms == Percentiles(20.0, 20.0, 30.0, 30.0, 30.0, 30.0)
    assert made.late_ms.max == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("ttft_ms", "e2e_ms", "delays_ms", "undecided"),
    [
        (1020.0, 1400.0, (30.0, 0.0), 1),  # came in time, perhaps
        (1020.0, 1400.0, (10.0, 0.0), 0),
        (500.0, 1320.0, (0.0, 30.0), 1),  # its last token came in time, perhaps
        (500.0, 1290.0, (30.0, 0.0), 1),  # its first token came sooner, so that the others took longer, perhaps
        (500.0, 1290.0, (5.0, 0.0), 0),
        (900.0, 1000.0, (600.0, 0.0), 0),
    ],
)
def test_an_answer_is_undecided_if_the_clients_own_delays_decide(
    ttft_ms: float, e2e_ms: float, delays_ms: tuple[float, float], undecided: int
) -> None:
    figures = LoadFigures(slo=SLO(1000.0, 20.0))
    figures.add(RequestOutcome(0.0, 0.0, 2.0, Timings(ttft_ms, e2e_ms, 41), own_delays_ms=delays_ms))
    found = report_of(figures, server="", model="", load={})
    assert found.undecided == undecided
    assert any(line.startswith("undecided 1:") for line in table(found)) == bool(undecided)


def test_many_different_errors_are_counted_together() -> None:
    figures = LoadFigures(slo=SLO(2000.0, 100.0))
    for number in range(2 * MAX_ERRORS_NAMED):
        figures.add(RequestOutcome(0.0, 0.0, 1.0, error=f"status 500: request {number}"))
    assert len(figures.errors) == MAX_ERRORS_NAMED + 1 and figures.errors[OTHER_ERRORS] == MAX_ERRORS_NAMED


def test_figures_of_parts_are_those_of_the_whole() -> None:
    slo = SLO(2000.0, 100.0)
    figures, parts = LoadFigures(slo=slo), [LoadFigures(slo=slo), LoadFigures(slo=slo)]
    for number, outcome in enumerate(OUTCOMES):
        parts[number % 2].add(outcome)
    for part in parts:
        figures.merge(msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=LoadFigures))
    assert report_of(figures, server="http://s", model="m", load={"--rate": "4"}) == report()


def test_json_is_read_as_it_was_written() -> None:
    assert msgspec.json.decode(msgspec.json.encode(report()), type=Report) == report()


def test_the_interval_of_a_share_is_wilsons() -> None:
    # Newcombe (1998), table I, method 3 (score): 81 of 263.
    assert share_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert share_interval(0, 0) == (0.0, 1.0)
    assert share_interval(10, 10)[1] == 1.0 and share_interval(0, 10)[0] == 0.0


def test_a_table_says_what_was_missed_and_when_the_generator_was_late() -> None:
    lines = "\n".join(table(report()))
    assert "1 of 5 (20%) met TTFT 2000 ms and TPOT 100 ms" in lines
    assert "missed    1 by TTFT, 1 by TPOT, 1 by both" in lines and "1 x status 500" in lines
    assert "8% of the prompt tokens from a cache" in lines and "were sent 10 ms late" in lines
    assert "goodput cannot be compared" not in "\n".join(comparison(report(), report(), ("a", "b")))
    stricter = make_report(OUTCOMES, SLO(900.0, 100.0), server="", model="", load={})
    assert "TTFT 900 ms and TPOT 100 ms for the second" in "\n".join(comparison(report(), stricter, ("a", "b")))
    punctual = make_report(OUTCOMES[:1], SLO(2000.0, 100.0), server="", model="", load={})
    assert "late or later" not in "\n".join(table(punctual))


def test_a_comparison_has_ratios() -> None:
    faster = make_report(OUTCOMES[:1], SLO(2000.0, 100.0), server="", model="", load={})
    lines = {line[:24].strip(): line[24:].split() for line in comparison(report(), faster, ("before", "after"))}
    assert lines[""] == ["before", "after", "ratio"]
    assert lines["TTFT p99, ms"] == ["3000.00", "100.00", "0.03"]
    assert lines["goodput, requests/s"] == ["0.25", "2.00", "8.00"] and lines["errors"] == ["1.00", "0.00", "0.00"]
