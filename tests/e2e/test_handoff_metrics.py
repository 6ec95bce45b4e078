"""A request's handoff is told in its record, by the workers on both sides, and to Prometheus; and they agree."""

import httpx
import pytest

from infra.redis.records import WorkerRecord
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S, wait_until

PROMPT = "A fox and a lantern went over the hill, and each of them told the other what it had seen. " * 4


def counted(records: list[WorkerRecord], role: str) -> dict[str, float]:
    loads = [record.load for record in records if record.role == role]
    stages = ("grant_seconds", "send_seconds", "exposed_seconds", "land_seconds")
    sums = {stage: sum(getattr(load.handoff, stage) for load in loads) for stage in stages}
    return sums | {"handoffs": sum(load.handoffs for load in loads), "bytes": sum(load.handoff_bytes for load in loads)}


def test_one_request(system: System) -> None:
    before = system.wait_until_idle()
    known = len(system.finished())
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "ignore_eos": True}
    assert (
        httpx.post(
            f"{system.gateway_url}/v1/chat/completions", json=body, timeout=LONG_DEADLINE_S, verify=PLAIN
        ).status_code
        == 200
    )
    wait_until(lambda: len(system.finished()) > known, "the request's record")
    record, after = system.finished()[-1], system.wait_until_idle()
    assert (record.transport, record.sealed, record.codec) == ("pool", False, "none")
    assert record.handoff_bytes > 0 and record.grant_ms > 0 and record.send_ms > 0

    grown = {}
    for role in ("prefill", "decode"):
        old, new = counted(before, role), counted(after, role)
        grown[role] = {name: value - old[name] for name, value in new.items()}
        assert grown[role]["handoffs"] == 1 and grown[role]["bytes"] == record.handoff_bytes
    exposed_ms = 1000 * grown["prefill"]["exposed_seconds"]
    assert 0 < record.exposed_ms < exposed_ms, "the record lacks a crossing of the network"
    assert 1000 * grown["prefill"]["grant_seconds"] == pytest.approx(record.grant_ms), "one source"
    assert all(record.load.held == type(record.load.held)() for record in after), "an idle worker holds nothing"

    here = {each.epoch: each for each in after}
    ways = {link.peer: link for link in here[record.prefill_worker].links}
    assert ways[record.decode_worker].transport == "pool"
    assert record.prefill_worker in [link.peer for link in here[record.decode_worker].links]
