"""Data and specifications of the time lines."""

import json

from dashboard.drawing.charts import goodput_chart, goodput_data, latency_chart, latency_data, with_runs
from dashboard.reading.figures import timeline
from dashboard.reading.load_runs import LoadRun
from tests.dashboard.samples import finished, refused

NOW_S = 1000.0
BUCKETS = timeline(
    [
        finished(ended_at=NOW_S - 6),
        finished(ended_at=NOW_S - 6, ttft_ms=150.0, good=False),
        finished(ended_at=NOW_S, outcome="failed"),
        refused(ended_at=NOW_S),
    ],
    NOW_S,
    window=20.0,
    intervals=4,
)


def test_goodput_stacks_good_late_failed_refused() -> None:
    data = goodput_data(BUCKETS, 5.0)
    rows = list(zip(*data.values(), strict=True))
    assert len(rows) == 16
    assert [row for row in rows if row[5]] == [  # 0 is the end of the interval that is running now
        (-15.0, -10.0, 0.0, 0.2, "good", 1),
        (-15.0, -10.0, 0.2, 0.4, "late", 1),
        (-5.0, 0.0, 0.0, 0.2, "failed", 1),
        (-5.0, 0.0, 0.2, 0.4, "refused", 1),
    ]


def test_latency_has_the_limit_only_where_it_is_near() -> None:
    near, far = (latency_data(BUCKETS, 5.0, "ttft", limit) for limit in (300.0, 2000.0))
    assert set(near["line"]) == {"p50", "p95", "limit"} and set(far["line"]) == {"p50", "p95"}
    assert near["ms"][near["line"].index("p95")] == 150.0
    assert latency_data([], 5.0, "tpot", 10.0) == {"age": [], "line": [], "ms": [], "run": []}
    assert "limit" not in latency_data(BUCKETS, 5.0, "ttft", None)["line"]


def test_a_line_ends_where_there_is_no_request() -> None:
    ends = [finished(ended_at=NOW_S - ago) for ago in (0, 4, 14)]  # none in the second of four intervals
    data = latency_data(timeline(ends, NOW_S, window=20.0, intervals=4), 5.0, "ttft", 60.0)
    runs: dict[str, list[tuple[float, int]]] = {line: [] for line in ("p50", "p95", "limit")}
    for line, age, run in zip(data["line"], data["age"], data["run"], strict=True):
        runs[line].append((age, run))
    assert runs["p50"] == runs["p95"] == [(-17.5, 0), (-7.5, 1), (-2.5, 1)]
    assert len({run for _, run in runs["limit"]}) == 1, "the limit holds all the time"
    layers = latency_chart(300.0, "#123456")["layer"][1:]  # the first has the runs of load generators
    assert [layer["encoding"]["detail"]["field"] for layer in layers] == ["run"] * 3


def test_a_specification_holds_no_data_and_stays_the_same() -> None:
    for chart in (goodput_chart(300.0), latency_chart(300.0, "#123456")):
        assert "data" not in chart and "datasets" not in chart
        json.dumps(chart)
    assert goodput_chart(300.0) is goodput_chart(300.0)


def test_runs_of_load_generators_are_rows_that_no_other_layer_draws() -> None:
    runs = [LoadRun("bench 4/s", -12.0, -3.0)]
    for data, chart in (
        (goodput_data(BUCKETS, 5.0), goodput_chart(300.0)),
        (latency_data(BUCKETS, 5.0, "ttft", 300.0), latency_chart(300.0, "#123456")),
    ):
        marked = with_runs(data, runs)
        assert len({len(column) for column in marked.values()}) == 1
        assert {name: column[:-1] for name, column in marked.items() if name in data} == data
        (row,) = [values for values in zip(*marked.values(), strict=True) if values[-1] is not None]
        assert row == (*[None] * len(data), -12.0, -3.0, "bench 4/s")
        bands, *others = chart["layer"]
        assert (bands["encoding"]["x"]["field"], bands["encoding"]["x2"]["field"]) == ("began", "ended")
        assert all("transform" in each for each in chart["layer"]) and bands["transform"] not in [
            each["transform"] for each in others
        ]
