"""A real collector receives one tree of spans for a request, with what each attempt did, and no text."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from contracts.errors import ConfigError
from gateway.reports.trace_parent import TraceParent, read_parent
from gateway.reports.traces import open_traces
from infra.config.gateway import GatewayConfig
from tests.gateway.reports.collector import Collector, attributes, collecting
from tests.gateway.running import Running, Serve, until

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


async def flush(running: Running) -> None:
    assert running.gateway.traces is not None
    await until(lambda: not len(running.gateway.requests), "the ends of all requests")
    await asyncio.to_thread(running.gateway.traces.close)


async def test_a_request_is_one_tree_inside_its_clients_trace(serve: Serve, collector: Collector) -> None:
    running = await serve("prefill", "decode", trace_endpoint=collector.url, trace_sample=1e-9)
    body = {"messages": [{"role": "user", "content": "SECRETPROMPT"}], "max_tokens": 20}
    answer = await running.client.post("/v1/chat/completions", json=body, headers={"traceparent": PARENT})
    told = read_parent(answer.headers["traceparent"])
    assert told is not None and f"{told.trace_id:032x}" == TRACE_ID and told.sampled
    await flush(running)
    (root,) = collector.named("POST /v1/chat/completions")
    assert root.parent_span_id.hex() == SPAN_ID and root.span_id.hex() == f"{told.span_id:016x}"
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert collector.inside(root) == ["queue", "attempt"]
    (attempt,) = collector.named("attempt")
    assert set(collector.inside(attempt)) == {"prefill queue", "prefill", "handoff", "decode"}
    assert attributes(attempt)["baton.decode_worker"] == running.peer("decode").epoch
    said = attributes(root)
    assert (said["gen_ai.usage.output_tokens"], said["baton.outcome"]) == (20, "finished")
    assert said["baton.request"] == answer.headers["x-request-id"]
    for span in collector.spans:
        above = root if span.parent_span_id == root.span_id else attempt
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if span is not root:
            assert above.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= above.end_time_unix_nano
    assert b"SECRETPROMPT" not in collector.bodies and b"quick brown" not in collector.bodies


async def test_each_attempt_has_a_span_with_its_end(serve: Serve, collector: Collector) -> None:
    running = await serve("prefill", trace_endpoint=collector.url, trace_sample=1.0)
    await running.add("decode", stalls_at=9)
    task = asyncio.create_task(running.chat())
    streams = running.gateway.requests._streams
    await until(lambda: any(len(one.sample.tokens) == 9 for one in streams.values()), "nine tokens")
    second = await running.add("decode")
    await running.peers[1].die()
    assert (await task).status_code == 200
    (record,) = await running.finished(1)
    assert [each.number for each in record.tries] == [1, 2]
    assert [each.end for each in record.tries] == ["worker died", "stop"]
    assert record.tries[1].decode_worker == second.epoch and record.tries[0].ended_ms <= record.tries[1].begun_ms
    await flush(running)
    first, again = sorted(collector.named("attempt"), key=lambda span: span.start_time_unix_nano)
    assert [attributes(span)["baton.end"] for span in (first, again)] == ["worker died", "stop"]
    assert "prefill" in collector.inside(first) and collector.inside(again) == ["decode"]


async def test_a_share_is_sampled_and_a_client_may_decide(serve: Serve, collector: Collector) -> None:
    running = await serve("prefill", "decode", trace_endpoint=collector.url, trace_sample=0.5)
    assert running.gateway.traces is not None
    draws = iter([0.4, 0.6])
    running.gateway.traces._draw = lambda: next(draws)
    assert "traceparent" in (await running.chat()).headers
    assert "traceparent" not in (await running.chat()).headers
    unsampled = await running.client.post(
        "/v1/completions", json={"prompt": ["a", "b"]}, headers={"traceparent": PARENT[:-1] + "0"}
    )
    assert unsampled.status_code == 200 and "traceparent" not in unsampled.headers
    await flush(running)
    assert len(collector.named("POST /v1/chat/completions")) == 1 and not collector.named("POST /v1/completions")


async def test_a_refused_request_is_an_error_and_a_collector_that_is_away_costs_no_answer(
    serve: Serve, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    running = await serve("prefill", "decode", trace_endpoint="http://127.0.0.1:9", trace_sample=1.0)
    assert (await running.chat()).status_code == 200
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    empty = await serve(trace_endpoint=collector.url, trace_sample=1.0, slo="ttft=1ms")
    for peer in running.peers:
        await peer.die()
    await until(lambda: not any(one.usable for one in empty.gateway.workers), "no worker")
    assert (await empty.chat()).status_code == 503
    await flush(empty)
    (root,) = collector.named("POST /v1/chat/completions")
    assert root.status.code == 2 and attributes(root)["baton.reason"] == "no_workers"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        PARENT.upper(),
        f"ff{PARENT[2:]}",
        f"{PARENT}-more",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        PARENT.replace(SPAN_ID, "0" * 16),
    ],
)
def test_a_malformed_parent_is_none(text: str) -> None:
    assert read_parent(text) is None


def test_a_parent_of_a_later_version_may_have_more() -> None:
    assert read_parent(f"01{PARENT[2:]}-more") == TraceParent(int(TRACE_ID, 16), int(SPAN_ID, 16), True)
    assert read_parent(PARENT) == read_parent(TraceParent(int(TRACE_ID, 16), int(SPAN_ID, 16), True).header())


def test_a_bad_endpoint_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"--trace-endpoint: 'collector:4317': a collector's URL begins with http"):
        open_traces(GatewayConfig(model="m", trace_endpoint="collector:4317"), "e")
    assert open_traces(GatewayConfig(model="m"), "e") is None
