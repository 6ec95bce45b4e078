"""Data and specifications of the time lines."""

import json

from core.slo import SLO
from dashboard.charts import goodput_chart, goodput_data, latency_chart, latency_data
from dashboard.figures import timeline
from tests.dashboard.samples import finished

NOW = 1000.0
BUCKETS = timeline(
    [finished(ended_at=NOW - 6), finished(ended_at=NOW - 6, ttft_ms=150.0), finished(ended_at=NOW, outcome="failed")],
    SLO(100.0, 10.0),
    NOW,
    window=20.0,
    intervals=4,
)


def test_goodput_stacks_good_late_failed() -> None:
    data = goodput_data(BUCKETS, 5.0)
    rows = list(zip(*data.values(), strict=True))
    assert len(rows) == 12
    assert [row for row in rows if row[5]] == [  # 0 is the end of the interval that is running now
        (-15.0, -10.0, 0.0, 0.2, "good", 1),
        (-15.0, -10.0, 0.2, 0.4, "late", 1),
        (-5.0, 0.0, 0.0, 0.2, "failed", 1),
    ]


def test_latency_has_the_limit_only_where_it_is_near() -> None:
    near, far = (latency_data(BUCKETS, 5.0, "ttft", limit) for limit in (300.0, 2000.0))
    assert set(near["line"]) == {"p50", "p95", "limit"} and set(far["line"]) == {"p50", "p95"}
    assert near["ms"][near["line"].index("p95")] == 150.0
    assert latency_data([], 5.0, "tpot", 10.0) == {"age": [], "line": [], "ms": []}


def test_a_specification_holds_no_data_and_stays_the_same() -> None:
    for chart in (goodput_chart(300.0), latency_chart(300.0, "#123456")):
        assert "data" not in chart and "datasets" not in chart
        json.dumps(chart)
    assert goodput_chart(300.0) is goodput_chart(300.0)
