"""Whatever a client is refused stands in the log, with its id and its reason, and is counted."""

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest

from contracts.slo import Objective
from gateway.errors import APIError, invalid, unavailable
from gateway.metrics.gateway_metrics import Metrics
from gateway.reports.refusals import UNAUTHENTICATED_LOG_INTERVAL_S, Refusals
from infra.network.sealing import Signer
from infra.process.log_lines import MAX_LINES, BoundedLog
from infra.redis.records import GatewayRecord
from infra.redis.registry import RECORD_PURPOSE, listed
from tests.gateway.conftest import SECRET
from tests.gateway.running import Running, Serve, until
from tests.gateway.web.test_protocol import connected
from tests.waiting import DEADLINE_S


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if " is answered " in record.getMessage()]


async def counted(running: Running, status: int, code: str) -> bool:
    text = (await running.client.get("/metrics")).text
    return f'baton:requests_refused_total{{code="{code}",model_name="tiny",status="{status}"}} 1.0' in text


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What the gateway writes to stderr."""
    text = io.StringIO()
    handler = BoundedLog(text)
    logging.getLogger("baton.gateway").addHandler(handler)
    yield text
    logging.getLogger("baton.gateway").removeHandler(handler)


@pytest.fixture(autouse=True)
def listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "baton.gateway")


async def test_a_refusal_has_a_line_with_its_id(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    running = await serve()
    answer = await running.chat()
    id = answer.headers["x-request-id"]
    assert lines(caplog) == [f"request {id} is answered 503 no_workers: {answer.json()['error']['message']}"]
    assert await counted(running, 503, "no_workers")


async def test_records_tell_what_was_refused_and_by_which_objective(serve: Serve) -> None:
    running = await serve(slo="ttft=500ms")
    assert (await running.chat()).status_code == 503
    assert (await running.chat(n=99)).status_code == 400
    (record,) = await running.finished(1)
    assert (record.outcome, record.reason, record.good) == ("refused", "no_workers", False)
    assert record.objective == Objective(500.0)
    running.gateway.refusals.report(unavailable("no line in the log", "limits_unavailable"), "r-2")
    signer = Signer(SECRET.encode(), RECORD_PURPOSE)
    async with asyncio.timeout(DEADLINE_S):
        while (own := (await listed(running.store, signer, GatewayRecord))[0].record).refused != {
            "no_workers": 1,
            "limits_unavailable": 1,  # it never began, and has no record of its own
        }:
            await asyncio.sleep(0.02)
    assert own.objective == Objective(500.0)


async def test_no_word_of_a_client_is_in_the_log(
    running: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)  # as other libraries of a process may
    caplog.set_level(logging.INFO, "uvicorn.access")
    for field in ({"model": "secret"}, {"secret": 1}, {"stop": ["secret"] * 17}, {"max_tokens": "secret"}):
        assert (await running.chat(**field)).status_code >= 400
    assert (await running.client.get("/secret")).status_code == 404
    assert len(lines(caplog)) == 5 and "secret" not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_has_a_line_with_its_id(serve: Serve, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    running = await serve("decode", request_timeout=0.3)
    running.peer("decode").faults["deaf_to_jobs"] = 1000
    answer = await running.chat(stream=stream)
    assert answer.status_code == 504
    id = answer.headers["x-request-id"]
    assert [line.split(":")[0] for line in lines(caplog)] == [f"request {id} is answered 504 deadline_exceeded"]
    assert await counted(running, 504, "deadline_exceeded")


async def test_an_error_within_a_stream_has_a_line(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    running = await serve("decode")
    async with running.client.stream(
        "POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi!"}], "stream": True}
    ) as answer:
        text = ""
        async for piece in answer.aiter_text():
            if not text:
                running.gateway.requests.fail_all(unavailable("the server is shutting down", "shutting_down"))
            text += piece
    assert '"code":"shutting_down"' in text and text.endswith("data: [DONE]\n\n")
    id = answer.headers["x-request-id"]
    assert lines(caplog) == [f"request {id} is answered 503 shutting_down: the server is shutting down"]


async def test_what_is_no_http_has_a_line(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(running) as wire:
        await wire.send(b"\x00\x01\r\n\r\n")
        _, headers, _ = await wire.answer()
    assert lines(caplog) == [f"request {headers[b'x-request-id'].decode()} is answered 400 invalid_http"]
    assert await counted(running, 400, "invalid_http")


def test_each_code_has_its_own_lines(written: io.StringIO) -> None:
    refusals = Refusals(Metrics("tiny", []), keyed=False)
    many, rare = APIError(429, "full", code="rate_limit_exceeded"), invalid("x")
    for number in range(MAX_LINES + 5):
        refusals.report(many, f"r{number}")
    refusals.report(rare, "other")
    text = written.getvalue().splitlines()
    assert len(text) == MAX_LINES + 1 and text[-1] == "request other is answered 400 invalid_value"


def test_requests_without_a_valid_key_are_counted_in_a_line_a_minute(written: io.StringIO) -> None:
    now = 100.0
    refusals = Refusals(Metrics("tiny", []), keyed=True, clock=lambda: now)
    for code, count in (("missing_api_key", 3), ("invalid_api_key", 1)):
        for number in range(count):
            refusals.report(APIError(401, "no", code=code), f"r{number}")
    refusals.report_connection(invalid("x", code="invalid_http"), "c")
    assert written.getvalue() == "requests refused for lack of a valid key: 1 (missing_api_key 1)\n"
    now += UNAUTHENTICATED_LOG_INTERVAL_S
    refusals.report(APIError(401, "no", code="missing_api_key"), "last")
    assert written.getvalue().splitlines()[1:] == [
        "requests refused for lack of a valid key: 5 (missing_api_key 3, invalid_api_key 1, invalid_http 1)"
    ]


async def test_what_was_counted_last_is_told_though_nobody_asks_any_more(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the time of a line, and at the gateway's end whenever that is."""
    monkeypatch.setattr("gateway.reports.refusals.UNAUTHENTICATED_LOG_INTERVAL_S", 0.05)
    refusals = Refusals(Metrics("tiny", []), keyed=True)
    telling = asyncio.create_task(refusals.run())
    for _ in range(3):
        refusals.report(APIError(401, "no", code="missing_api_key"), "r")
    await until(lambda: len(written.getvalue().splitlines()) == 2, "the second line")
    assert written.getvalue().endswith("valid key: 2 (missing_api_key 2)\n")
    monkeypatch.setattr("gateway.reports.refusals.UNAUTHENTICATED_LOG_INTERVAL_S", 3600.0)
    refusals.report(APIError(401, "no", code="missing_api_key"), "r")
    assert len(written.getvalue().splitlines()) == 2
    telling.cancel()
    await asyncio.wait({telling})
    assert len(written.getvalue().splitlines()) == 3
