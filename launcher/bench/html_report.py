"""A report as one HTML file that needs nothing else: figures of a load, or curves of a sweep."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, structs

from contracts.errors import ConfigError
from launcher.bench.line_chart import Curve, LineChart
from workloads.goodput import Trial, best
from workloads.report import Percentiles, Report
from workloads.table import SPREADS, comparison, table

OPTION = "--html"
PERCENTILE_NUMBERS = (50, 90, 95, 99, 100)
"""Percentiles that the fields of `Percentiles` behind the mean hold."""
STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 1.5rem 0 .3rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: currentColor; }
.grid { stroke: var(--line); fill: none; } .limit { stroke: #d4564c; stroke-dasharray: 5 4; fill: none; }
svg text.limit { stroke: none; fill: #d4564c; }
table { border-collapse: collapse; }
td, th { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
td:first-child, th:first-child { text-align: left; } pre { overflow-x: auto; }
"""


class SweptCurve(Struct, frozen=True):
    """Trials of one kind of requests at several rates; `name` tells it from other curves."""

    name: str
    trials: Sequence[Trial]


def write_html(path: str, machine: str, curves: Sequence[SweptCurve]) -> None:
    """Raises `ConfigError` if the file cannot be written."""
    if path:
        _write(path, html_report(machine, curves))


def write_comparison(path: str, reports: Mapping[str, Report]) -> None:
    """Writes a page of two reports, by their names, in the same charts. Raises `ConfigError` as `write_html` does."""
    (name, first), (other, second) = reports.items()
    text = "\n".join(comparison(first, second, (name, other)))
    body = f"<pre>{escape(text)}</pre>{''.join(_percentile_charts(reports))}"
    _write(path, _page(f"{name} and {other}", first, f"{first.model}: {first.server}, {second.server}", body))


def _write(path: str, page: str) -> None:
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(OPTION, path, error.strerror or "cannot be written") from None


def html_report(machine: str, curves: Sequence[SweptCurve]) -> str:
    """Returns the page. A single load is a curve with one trial. There is at least one trial."""
    first = curves[0].trials[0].report
    several = any(len(curve.trials) > 1 for curve in curves)
    body = _swept(curves) if several else _single(first)
    return _page(f"{first.model}, {first.server}", first, machine, "".join(body))


def _page(title: str, first: Report, subtitle: str, body: str) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    slo = f"good: TTFT ≤ {first.slo.ttft_ms:g} ms and TPOT ≤ {first.slo.tpot_ms:g} ms"
    return (
        f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{escape(subtitle)}<br>{escape(slo)}</p>{body}</body></html>\n"
    )


def _single(report: Report) -> Iterator[str]:
    yield f"<pre>{escape(chr(10).join(table(report)))}</pre>"
    yield from _percentile_charts({"": report})


def _percentile_charts(reports: Mapping[str, Report]) -> Iterator[str]:
    slo = next(iter(reports.values())).slo
    yield "<div class=charts>"
    for name, attribute in SPREADS[:3]:
        spreads: dict[str, Percentiles] = {each: getattr(report, attribute) for each, report in reports.items()}
        limit = {"ttft_ms": slo.ttft_ms, "tpot_ms": slo.tpot_ms}.get(attribute)
        near = limit is not None and limit < 3 * max(spread.max for spread in spreads.values())
        chart = LineChart(
            x_title="percentile",
            y_title=f"{name}, ms",
            curves=[
                Curve(each, list(zip(PERCENTILE_NUMBERS, structs.astuple(spread)[1:], strict=True)))
                for each, spread in spreads.items()
            ],
            y_limit=(limit, "limit") if limit is not None and near else None,
        )
        yield f"<div><h2>{name}</h2>{chart.svg()}</div>"
    yield "</div>"


def _swept(curves: Sequence[SweptCurve]) -> Iterator[str]:
    slo, share = curves[0].trials[0].report.slo, curves[0].trials[0].wanted_share
    charts = {
        "Output tokens/s over TPOT": LineChart(
            x_title="TPOT p50, ms",
            y_title="output tokens/s",
            curves=[throughput_curve(curve, slo.tpot_ms) for curve in curves],
            x_limit=(slo.tpot_ms, "limit"),
        ),
        "Good requests over the rate": LineChart(
            x_title="requests/s",
            y_title="good, %",
            curves=[_over_rate(curve, lambda report: 100 * report.good_share) for curve in curves],
            y_limit=(100 * share, f"{share:.0%}"),
        ),
        "TTFT over the rate": LineChart(
            x_title="requests/s",
            y_title="TTFT p90, ms",
            curves=[_over_rate(curve, lambda report: report.ttft_ms.p90) for curve in curves],
            y_limit=(slo.ttft_ms, "limit"),
        ),
    }
    yield "<div class=charts>"
    for title, chart in charts.items():
        yield f"<div><h2>{title}</h2>{chart.svg()}</div>"
    yield "</div><table><tr><th>requests<th>requests/s<th>good<th>TTFT p90, ms<th>TPOT p90, ms<th>output tokens/s</tr>"
    for curve in curves:
        for trial in sorted(curve.trials, key=lambda each: each.rate):
            report = trial.report
            yield (
                f"<tr><td>{escape(curve.name)}<td>{trial.rate:.3g}<td>{report.good_share:.0%}<td>{report.ttft_ms.p90:.0f}"
                f"<td>{report.tpot_ms.p90:.1f}<td>{report.output_tokens_per_s:.1f}</tr>"
            )
    yield "</table>"
    for curve in curves:
        found = best(curve.trials)
        goodput = f"{found.goodput:.2f} requests/s" if found is not None else "0"
        yield f"<p>{escape(curve.name or 'goodput')}: {goodput} good</p>"


def throughput_curve(curve: SweptCurve, limit_ms: float) -> Curve:
    """Returns output tokens/s over TPOT, by growing rate, with a mark where the curve crosses the limit."""
    trials = sorted(curve.trials, key=lambda each: each.rate)
    points = [(each.report.tpot_ms.p50, each.report.output_tokens_per_s) for each in trials]
    marks = []
    for (x, y), (next_x, next_y) in pairwise(points):
        if x <= limit_ms < next_x:
            crossing = y + (next_y - y) * (limit_ms - x) / (next_x - x)
            marks = [(limit_ms, crossing, f"{crossing:,.0f} tokens/s")]
    return Curve(curve.name, points, marks)


def _over_rate(curve: SweptCurve, figure: Callable[[Report], float]) -> Curve:
    trials = sorted(curve.trials, key=lambda each: each.rate)
    return Curve(curve.name, [(each.rate, figure(each.report)) for each in trials])
