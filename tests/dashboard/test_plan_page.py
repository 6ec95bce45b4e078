"""The page Plan in Streamlit's test harness, with records in a real server."""

import time
from collections.abc import Iterator

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.app import open_source
from dashboard.plan_page import throughput_chart
from dashboard.reading.plan_figures import ThroughputPoint
from infra.redis.records import Memory
from tests.dashboard.samples import DECODE, end, finished, gateway, register, worker
from tests.waiting import DEADLINE_S


def script(redis: str) -> None:
    """What `dashboard/app.py` does when a visitor chooses the page."""
    from dashboard.app import plan_of
    from infra.config.dashboard import DashboardConfig

    plan_of(DashboardConfig(redis=redis, gateway="http://127.0.0.1:1"))


@pytest.fixture
def app(redis_url: str) -> Iterator[AppTest]:
    yield AppTest.from_function(script, default_timeout=DEADLINE_S, kwargs={"redis": redis_url})
    open_source(redis_url).close()
    open_source.clear()


def test_memory_and_price_are_computed_from_the_running_deployment(app: AppTest, redis_url: str) -> None:
    register(redis_url, worker(DECODE, memory=Memory(token_bytes=1 << 20, tokens=8192)), gateway())
    end(redis_url, *[finished(number, ended_at=time.time(), output_tokens=300) for number in range(1, 11)])
    app.run()
    assert not app.exception
    memory = app.metric[0]
    assert (memory.value, memory.delta) == ("64.0 GiB", "4 sequences of 2048 tokens fit into all decode workers")
    app.number_input(key="plan-price").set_value(3.6).run()
    assert not app.exception and app.metric[1].value == "$100.000"  # 10 tokens/s, 0.1 cents a second


def test_without_workers_and_requests_the_page_says_so(app: AppTest) -> None:
    app.run()
    assert not app.exception and "No decode worker" in app.info[0].value


@pytest.mark.parametrize(("limit_ms", "drawn"), [(60.0, [{"tpot": 60.0}]), (100.0, []), (None, [])])
def test_a_limit_far_from_all_points_is_not_drawn(limit_ms: float | None, drawn: list[dict[str, float]]) -> None:
    """It would press them against the axis."""
    chart = throughput_chart([ThroughputPoint(30.0, 800.0), ThroughputPoint(2.0, 90.0)], limit_ms)
    rows = [row for data in chart.to_dict()["datasets"].values() for row in data]
    assert [row for row in rows if "tokens" not in row] == drawn
