"""The page for Prometheus: workers once over all gateways, tenants bounded, versions, and requests' longest answers."""

import asyncio

from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gateway.metrics.gateway_metrics import Metrics
from gateway.metrics.ownership import PageOwner
from gateway.metrics.tenant_metrics import MAX_TENANTS, OTHER_TENANTS, TenantMetrics
from gateway.workers.worker import Worker
from infra.network.sealing import Signer
from infra.redis.records import FinishedRecord, GatewayRecord, WorkerRecord
from infra.redis.registry import RECORD_PURPOSE, listed
from pricing.routes.links import HostLocation
from tests.gateway.conftest import SECRET
from tests.gateway.running import Running, Serve, until

RECORD = FinishedRecord("r", "finished", "stop", 9.0, "m", 3, 5, 1.0, 1.0, 5.0, 0, 1.0, 0, 0, 0, "p", "d", 1, True)


def families(page: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page)}


def totals(page: dict[str, Metric], name: str) -> list[Sample]:
    return [sample for sample in page[name].samples if sample.name.endswith("_total")]


async def both_listed(running: Running) -> bool:
    found = await listed(running.store, Signer(SECRET.encode(), RECORD_PURPOSE), GatewayRecord)
    return len(found) == 2


async def test_two_gateways_show_each_worker_once_and_their_own_requests_each(serve: Serve) -> None:
    first = await serve("prefill", "decode", "decode", "decode")
    second = await serve()
    await until(lambda: sum(one.usable for one in second.gateway.workers) == 4, "the second gateway's workers")
    assert (await second.chat()).status_code == 200
    await until(lambda: not len(second.gateway.requests), "the end of the request")
    while not await both_listed(first):
        await asyncio.sleep(0.02)
    pages = [families((await running.client.get("/metrics")).text) for running in (first, second)]
    shown = [sample.labels["engine"] for page in pages for sample in page["vllm:num_requests_running"].samples]
    assert sorted(shown) == sorted(peer.epoch for peer in first.peers)
    assert [
        sum(s.value for s in page["baton:requests_ended"].samples if s.name.endswith("_total")) for page in pages
    ] == [0, 1]
    for page in pages:
        assert page["process_cpu_seconds"].samples[0].value > 0
        assert page["baton:build_info"].samples[0].labels["version"]
        assert len(page["baton:worker_sequences"].samples) == 4


async def test_a_worker_has_its_place_and_its_restarts() -> None:
    record = WorkerRecord("e", "decode", "", "", "m", "f", "c", 16, 99, "cuda:0 (GPU 3)", "bf16", 0.0)
    record = structs.replace(record, place=HostLocation("host7", "", "rack2"), service="decode-1", restarts=4)
    page = families(await Metrics("m", [Worker(record)]).page(PageOwner("g")))
    info = page["baton:worker_info"].samples[0].labels
    assert (info["engine"], info["host"], info["service"], info["gpu"]) == ("e", "host7", "decode-1", "cuda:0 (GPU 3)")
    (restarts,) = page["baton:worker_restarts"].samples
    assert restarts.value == 4 and "engine" not in restarts.labels


def test_tenants_beyond_the_bound_are_counted_together() -> None:
    registry = CollectorRegistry()
    tenants = TenantMetrics("m", registry)
    for number in range(MAX_TENANTS + 7):
        tenants.ended(structs.replace(RECORD, tenant=f"t{number}"))
        tenants.refused(f"t{number}", 429, "rate_limit_exceeded")
    tenants.ended(RECORD)  # a gateway without keys
    page = families(generate_latest(registry).decode())
    tokens = {
        (s.labels["tenant"], s.labels["kind"]): s.value
        for s in page["baton:tenant_tokens"].samples
        if s.name.endswith("_total")
    }
    assert tokens["t0", "output"] == 5 and tokens[OTHER_TENANTS, "prompt"] == 7 * 3
    assert len(tokens) == 2 * (MAX_TENANTS + 1)
    assert len(totals(page, "baton:tenant_requests_refused")) == MAX_TENANTS + 1
