"""The page's states, run by Streamlit's own test harness against a real server."""

import time
from collections.abc import Iterator

import pytest
from streamlit.testing.v1 import AppTest

from contracts.slo import Objective
from dashboard.app import open_source
from infra.redis.records import AttemptRecord, StatsSample
from infra.redis.worker_load import KVCounts, WorkerLoad
from tests.dashboard.samples import (
    DECODE,
    PREFILL,
    end,
    finished,
    gateway,
    refused,
    register,
    sample,
    sharing_worker,
    worker,
)
from tests.waiting import DEADLINE_S


def script(redis: str) -> None:
    """What `dashboard/app.py` does when Streamlit runs it."""
    from dashboard.app import page
    from infra.config.dashboard import DashboardConfig

    page(DashboardConfig(redis=redis, gateway="http://127.0.0.1:1"))


@pytest.fixture
def app(redis_url: str) -> Iterator[AppTest]:
    yield AppTest.from_function(script, default_timeout=DEADLINE_S, kwargs={"redis": redis_url})
    open_source(redis_url).close()
    open_source.clear()


def html(app: AppTest) -> str:
    return " ".join(element.proto.body for element in app.get("html"))


def test_no_workers(app: AppTest) -> None:
    app.run()
    assert not app.exception
    assert "No worker has registered yet" in app.info[0].value
    assert "Send 20 requests" not in [button.label for button in app.button]


def test_the_page_shows_what_the_gateway_judged(app: AppTest, redis_url: str) -> None:
    """The page has no objective of its own: 11 of 12 requests were within theirs, whatever the deployment's is."""
    register(redis_url, worker(), worker(DECODE), gateway(refused={"rate_limit_exceeded": 3}))
    patient = finished(11, ttft_ms=5000.0, e2e_ms=5200.0, objective=Objective(30_000.0))
    strict = finished(12, good=False, objective=Objective(40.0, 4.0))
    end(redis_url, *[finished(number) for number in range(1, 11)], patient, strict, refused(13))
    app.run()
    assert not app.exception
    assert "92% of 12 good, 1 refused" in html(app) and "96 KiB" in html(app) and "91bc44" in html(app)
    assert "3 rate_limit_exceeded" in html(app)
    assert not app.number_input
    assert len(app.get("vega_lite_chart")) == 5
    assert "Send 20 requests" not in [button.label for button in app.button]


def test_what_sharing_saves(app: AppTest, redis_url: str) -> None:
    register(redis_url, sharing_worker(), worker(DECODE), gateway())
    now, counts = time.time(), KVCounts(queried_tokens=181_000, found_tokens=130_500)
    old, new = WorkerLoad(kv=counts), sharing_worker().load
    sample(redis_url, *(StatsSample(at, PREFILL, "prefill", load) for at, load in ((now - 9, old), (now, new))))
    end(redis_url, finished(samples=4, output_tokens=164))
    app.run()
    assert not app.exception
    assert "80%<small>of prompt" in html(app) and "16 of 20 cached" in html(app) and "4 samples" in html(app)
    assert "72%" in html(app) and "50% of 1.0k in the last minute" in html(app)


def test_redis_away() -> None:
    url = "redis://me:hunter2@127.0.0.1:1"
    app = AppTest.from_function(script, default_timeout=DEADLINE_S, kwargs={"redis": url}).run()
    assert not app.exception
    assert [error.value for error in app.error] == [
        "Redis at redis://me:***@127.0.0.1:1 does not answer; this page goes on asking."
    ]
    open_source(url).close()
    open_source.clear()


def test_no_gateway_to_ask(app: AppTest, redis_url: str) -> None:
    register(redis_url, worker(), gateway())
    app.run()
    next(button for button in app.button if button.label == "Send 20 requests").click().run()
    volley = app.session_state["volley"]
    deadline = time.monotonic() + DEADLINE_S
    while volley.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    app.run()
    assert "20 of 20 requests failed: http://127.0.0.1:1 cannot be reached: " in app.warning[0].value


def test_the_details_show_misses_tenants_lives_and_one_request(app: AppTest, redis_url: str) -> None:
    register(redis_url, worker(service="prefill-0", restarts=3), worker(DECODE), gateway())
    first = AttemptRecord(1, 1, 5.0, 90.0, PREFILL, DECODE, "worker died")
    tries = (first, AttemptRecord(2, 1, 95.0, 250.0, "", DECODE, "stop"))
    late = finished(7, good=False, ttft_ms=900.0, objective=Objective(500.0, 20.0), tenant="acme", tries=tries)
    end(redis_url, finished(1), late, refused(2))
    app.run()
    for part, words in (
        ("Misses", ("first token after its limit", "objective_out_of_reach")),
        ("Tenants", ("acme", '<td class="n">0%</td>')),
        ("Workers", ("prefill-0", '<td class="n">3</td>')),
    ):
        app.button_group(key="details").set_value(part).run()
        assert not app.exception
        assert all(word in html(app) for word in words), part
    app.button_group(key="details").set_value("Misses").run()
    app.number_input(key="what-if-ttft").set_value(1000.0).run()
    assert "What if: 100% of 2 requests would have been good" in " ".join(one.value for one in app.caption)
    app.button_group(key="details").set_value("One request").run()
    app.text_input(key="request-id").set_value(f" chatcmpl-{late.request} ").run()
    assert "worker died" in html(app) and "tenant acme" in html(app)
    app.text_input(key="request-id").set_value("<b>no").run()
    assert "None of the newest requests" in app.caption[-1].value and not app.exception


def test_the_banner_stands_while_nothing_can_serve(app: AppTest, redis_url: str) -> None:
    register(redis_url, worker(DECODE, draining=True), gateway())
    app.run()
    assert "all workers are shut down" in app.error[0].value
    register(redis_url, worker("77bc44aa00112233"))
    open_source(redis_url)._read_at = -100.0
    app.run()
    assert not app.error and not app.exception
