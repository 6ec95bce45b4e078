"""Draws the time lines. Only the data of a chart changes, so that the browser redraws it in place."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import altair as alt

from dashboard.drawing.palette import NEUTRAL_COLOUR, OUTCOME_COLOURS, STAGE_COLOURS
from dashboard.reading.figures import Bucket, Outcome, Spread
from dashboard.reading.history import LoadPoint
from dashboard.reading.load_runs import LoadRun

Columns = dict[str, list[Any]]
CHART_HEIGHT_PX = 190
CHART_PADDING_PX = {"left": 2, "right": 8, "top": 4, "bottom": 2}
CHARTED_OUTCOMES = (Outcome.GOOD, Outcome.LATE, Outcome.FAILED, Outcome.REFUSED)
RUN_OPACITY = 0.15
MAX_LIMIT_RATIO = 2.5  # limits above this multiple of the highest value are not drawn
AGE_LABEL = (
    "datum.value == 0 ? 'now' : -datum.value >= 5400 ? format(-datum.value / 3600, '.3~') + ' h' : "
    "-datum.value >= 60 ? format(-datum.value / 60, '~') + ' min' : -datum.value + ' s'"
)


def goodput_data(buckets: Sequence[Bucket], width: float) -> Columns:
    """Returns a rectangle for each interval and outcome: start, end (s), low, high (requests/s), outcome, count.

    `width`: length of an interval, in seconds.
    """
    columns: Columns = {name: [] for name in ("start", "end", "low", "high", "verdict", "count")}
    for bucket in buckets:
        high = 0.0
        for verdict in CHARTED_OUTCOMES:
            low, high = high, high + bucket.counts[verdict] / width
            row = (bucket.age - width, bucket.age, low, high, verdict.value, bucket.counts[verdict])
            _append(columns, row)
    return columns


def latency_data(buckets: Sequence[Bucket], width: float, figure: str, limit_ms: float | None) -> Columns:
    """Returns points (age, line, ms, run) of `figure` ("ttft" or "tpot"): p50, p95, and the limit if it is near.

    A run is a connected part of a line: an interval without requests ends it.
    """
    columns: Columns = {name: [] for name in ("age", "line", "ms", "run")}
    run = 0
    for bucket in buckets:
        spread: Spread | None = getattr(bucket, figure)
        if spread is None:
            run += 1
            continue
        _append(columns, (bucket.age - width / 2, "p50", spread.p50, run))
        _append(columns, (bucket.age - width / 2, "p95", spread.p95, run))
    if columns["ms"] and limit_ms is not None and limit_ms <= MAX_LIMIT_RATIO * max(columns["ms"]):
        _append(columns, (buckets[0].age - width, "limit", limit_ms, 0))
        _append(columns, (0.0, "limit", limit_ms, 0))
    return columns


def with_runs(columns: Columns, runs: Sequence[LoadRun]) -> Columns:
    """Returns the data with a row (began, ended, load) for each run of a load generator."""
    height = max((len(column) for column in columns.values()), default=0)
    marked = {name: [*column, *[None] * len(runs)] for name, column in columns.items()}
    for number, name in enumerate(("began", "ended", "load")):
        values = [(run.began, run.ended, run.name)[number] for run in runs]
        marked[name] = [*[None] * height, *values]
    return marked


class LoadLine(NamedTuple):
    """A figure of the roles' load over time."""

    field: str  # of `load_data`
    name: str
    note: str
    unit: str
    form: str  # of its numbers, in d3's language


KV_LINE = LoadLine("kv", "KV in use", "share of the blocks that sequences hold", "of KV blocks", ".0%")
WAITING_LINE = LoadLine("waiting", "Queue", "sequences that wait on workers, mean", "waiting", "~g")


def load_data(points: Sequence[LoadPoint], width: float) -> Columns:
    """Returns points (age, role, kv, waiting, run); `kv` as a share. `width`: seconds between two points.

    A run is a connected part of a line: a gap ends it.
    """
    columns: Columns = {name: [] for name in ("age", "role", "kv", "waiting", "run")}
    last: dict[str, float] = {}
    runs: dict[str, int] = {}
    for point in points:
        if point.age - last.get(point.role, point.age) > 1.5 * width:
            runs[point.role] = runs.get(point.role, 0) + 1
        last[point.role] = point.age
        run = f"{point.role} {runs.get(point.role, 0)}"
        _append(columns, (point.age, point.role, point.kv_used, point.waiting, run))
    return columns


@cache
def load_chart(window: float, line: LoadLine) -> dict[str, Any]:
    """A line for each role."""
    roles = ("prefill", "decode")
    colours = alt.Scale(domain=list(roles), range=[STAGE_COLOURS[role] for role in roles])
    axis = alt.Axis(tickCount=4, domain=False, ticks=False, titleFontWeight="normal", format=line.form)
    chart = (
        alt.Chart(alt.NamedData("data"))
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=14))
        .encode(
            x=_age_axis("age", window, 5),
            y=alt.Y(f"{line.field}:Q", title=line.unit, scale=alt.Scale(zero=True, nice=True), axis=axis),
            color=alt.Color("role:N", scale=colours, legend=None),
            detail="run:N",
            tooltip=[alt.Tooltip("role:N"), alt.Tooltip(f"{line.field}:Q", format=line.form)],
        )
    )
    return _specification(chart)


@cache
def goodput_chart(window: float) -> dict[str, Any]:
    """Stacked bars: good, late, failed and refused requests per second."""
    base = alt.Chart(alt.NamedData("data"))
    bars = (
        base.transform_filter("isValid(datum.verdict)")
        .mark_rect(xOffset=1, x2Offset=0)
        .encode(
            x=_age_axis("start", window, 5),
            x2="end:Q",
            y=alt.Y("low:Q", title="requests/s", scale=alt.Scale(zero=True, nice=True), axis=_value_axis()),
            y2="high:Q",
            color=alt.Color(
                "verdict:N",
                scale=alt.Scale(
                    domain=[v.value for v in CHARTED_OUTCOMES], range=[OUTCOME_COLOURS[v] for v in CHARTED_OUTCOMES]
                ),
                legend=None,
            ),
            tooltip=[alt.Tooltip("verdict:N"), alt.Tooltip("count:Q", title="requests")],
        )
    )
    return _specification(alt.layer(_runs(base, window, 5), bars))


@cache
def latency_chart(window: float, colour: str) -> dict[str, Any]:
    """Lines of p50 and p95 over time, and the limit dashed."""
    data = alt.Chart(alt.NamedData("data"))
    base = data.encode(
        x=_age_axis("age", window, 2),
        y=alt.Y("ms:Q", title="ms", scale=alt.Scale(zero=True, nice=True), axis=_value_axis()),
        detail="run:N",
    )
    tooltip = [alt.Tooltip("line:N"), alt.Tooltip("ms:Q", format=",.1f")]
    median = base.transform_filter("datum.line == 'p50'").mark_line(
        color=colour, strokeWidth=2, point=alt.OverlayMarkDef(color=colour, size=22)
    )
    tail = base.transform_filter("datum.line == 'p95'").mark_line(
        color=colour, opacity=0.45, strokeWidth=1.5, point=alt.OverlayMarkDef(color=colour, size=14, opacity=0.45)
    )
    limit = base.transform_filter("datum.line == 'limit'").mark_line(
        color=NEUTRAL_COLOUR, strokeDash=[5, 4], strokeWidth=1.5
    )
    return _specification(
        alt.layer(_runs(data, window, 2), limit, tail.encode(tooltip=tooltip), median.encode(tooltip=tooltip))
    )


def _runs(base: alt.Chart, window: float, parts: int) -> alt.Chart:
    """Bands behind a chart, from the beginning to the end of each run of a load generator."""
    bands: alt.Chart = base.transform_filter("isValid(datum.load)").mark_rect(color=NEUTRAL_COLOUR, opacity=RUN_OPACITY)
    return bands.encode(
        x=_age_axis("began", window, parts), x2="ended:Q", tooltip=[alt.Tooltip("load:N", title="load")]
    )


def _age_axis(field: str, window: float, parts: int) -> alt.X:
    marks = [-window * part / parts for part in range(parts, -1, -1)]
    axis = alt.Axis(values=marks, labelExpr=AGE_LABEL, grid=False, title=None, labelFlush=True, ticks=False)
    return alt.X(f"{field}:Q", scale=alt.Scale(domain=[-window, 0], nice=False), axis=axis)


def _value_axis() -> alt.Axis:
    return alt.Axis(tickCount=4, domain=False, ticks=False, titleFontWeight="normal")


def _specification(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> dict[str, Any]:
    found: dict[str, Any] = chart.properties(height=CHART_HEIGHT_PX, padding=CHART_PADDING_PX).to_dict()
    del found["data"]
    return found


def _append(columns: Columns, row: tuple[Any, ...]) -> None:
    for column, value in zip(columns.values(), row, strict=True):
        column.append(value)
