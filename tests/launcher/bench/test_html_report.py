"""A report as a page: curves cross the limit where they should, and nothing is loaded from elsewhere."""

import pytest
from msgspec import structs

from contracts.slo import SLO
from launcher.bench.html_report import SweptCurve, html_report, throughput_curve
from workloads.goodput import Trial
from workloads.report import Missed, Percentiles, Report

BLANK = Percentiles()
REPORT = Report(
    server="http://s",
    model="<m>",
    load={},
    slo=SLO(1000.0, 40.0),
    seconds=1.0,
    requests=10,
    answered=10,
    good=10,
    missed=Missed(),
    requests_per_s=1.0,
    goodput_per_s=1.0,
    output_tokens_per_s=100.0,
    prompt_tokens_per_s=1.0,
    cached_share=0.0,
    ttft_ms=BLANK,
    tpot_ms=BLANK,
    itl_ms=BLANK,
    e2e_ms=BLANK,
    late_ms=BLANK,
)


def trial(rate: float, tpot_ms: float, tokens_per_s: float, good: int = 10) -> Trial:
    tpot = Percentiles(p50=tpot_ms, p90=tpot_ms, max=tpot_ms)
    return Trial(rate, structs.replace(REPORT, tpot_ms=tpot, output_tokens_per_s=tokens_per_s, good=good))


def test_the_mark_is_where_the_curve_crosses_the_limit() -> None:
    curve = SweptCurve("64", [trial(4, 60.0, 400.0, good=2), trial(1, 10.0, 100.0), trial(2, 30.0, 200.0)])
    found = throughput_curve(curve, 40.0)
    assert found.points == [(10.0, 100.0), (30.0, 200.0), (60.0, 400.0)]
    ((x, y, text),) = found.marks
    assert (x, text) == (40.0, "267 tokens/s") and y == pytest.approx(200 + 200 / 3)
    assert throughput_curve(curve, 70.0).marks == []


def test_a_sweep_has_a_curve_for_each_length_and_stands_alone() -> None:
    curves = [
        SweptCurve(f"{length} prompt tokens", [trial(1, 10.0, 100.0), trial(2, 50.0, 150.0)]) for length in (64, 1024)
    ]
    page = html_report("a machine", curves)
    assert page.count("<svg") == 3 and "1024 prompt tokens" in page and "&lt;m&gt;" in page and "<m>" not in page
    assert "src=" not in page and "@import" not in page and "href" not in page


def test_a_single_load_shows_its_table_and_percentiles() -> None:
    page = html_report("a machine", [SweptCurve("", [trial(1, 10.0, 100.0)])])
    assert page.count("<svg") == 3 and "goodput   1.00 requests/s" in page
