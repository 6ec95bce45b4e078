"""Records as a running system writes them."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from contracts.slo import Objective
from infra.network.sealing import Signer
from infra.redis.clients import Store, connect
from infra.redis.records import (
    HEARTBEAT_S,
    FinishedRecord,
    GatewayRecord,
    Memory,
    RequestRecord,
    RunMark,
    StatsSample,
    WorkerRecord,
)
from infra.redis.registry import RECORD_PURPOSE, add_finished, add_run_mark, add_stats, publish
from infra.redis.worker_load import KVCounts, WorkerLoad

SIGNER = Signer(b"a secret that the page does not have", RECORD_PURPOSE)
GATEWAY = "9f3a6c1be2d04477"
PREFILL = "3fa2c1aa00112233"
DECODE = "91bc44aa00112233"


def finished(number: int = 1, **changes: Any) -> FinishedRecord:
    fields: dict[str, Any] = {
        "request": f"{GATEWAY}-{number:x}",
        "outcome": "finished",
        "reason": "stop",
        "ended_at": time.time(),
        "model": "demo",
        "prompt_tokens": 20,
        "output_tokens": 41,
        "ttft_ms": 50.0,
        "tpot_ms": 5.0,
        "e2e_ms": 250.0,
        "queue_ms": 4.0,
        "prefill_ms": 40.0,
        "handoff_ms": 46.0,
        "handoff_bytes": 96 << 10,
        "cached_tokens": 16,
        "prefill_worker": PREFILL,
        "decode_worker": DECODE,
        "attempts": 1,
        "good": True,
        "grant_ms": 3.0,
        "send_ms": 1.0,
        "exposed_ms": 0.4,
        "transport": "shm",
    }
    return FinishedRecord(**(fields | changes))


def refused(number: int = 1, **changes: Any) -> FinishedRecord:
    fields: dict[str, Any] = {
        "outcome": "refused",
        "reason": "objective_out_of_reach",
        "output_tokens": 0,
        "ttft_ms": 480.0,
        "tpot_ms": 0.0,
        "e2e_ms": 480.0,
        "queue_ms": 0.0,
        "prefill_ms": 0.0,
        "handoff_ms": 0.0,
        "handoff_bytes": 0,
        "cached_tokens": 0,
        "prefill_worker": "",
        "decode_worker": "",
        "good": False,
        "transport": "",
        "objective": Objective(500.0, 20.0),
    }
    return finished(number, **(fields | changes))


def worker(epoch: str = PREFILL, **changes: Any) -> WorkerRecord:
    fields: dict[str, Any] = {
        "epoch": epoch,
        "role": "prefill" if epoch == PREFILL else "decode",
        "address": "tcp://127.0.0.1:40001",
        "handoff_address": "",
        "model": "demo",
        "fingerprint": "0" * 32,
        "content": "0" * 32,
        "block_tokens": 16,
        "max_model_len": 2048,
        "device": "cpu",
        "dtype": "fp32",
        "started_at": 1.0,
        "load": WorkerLoad(
            running=3, waiting=1, blocks_total=400, blocks_used=100, prompt_tokens=1200, output_tokens=3400
        ),
    }
    return WorkerRecord(**(fields | changes))


def sharing_worker(epoch: str = PREFILL) -> WorkerRecord:
    counts = KVCounts(
        queried_tokens=182_000,
        found_tokens=131_000,
        partial_hits=40,
        copied_blocks=212,
        forks=96,
        evicted_blocks=640,
        spilled_blocks=500,
        returned_blocks=180,
        preempted_swapped=14,
        preempted_recomputed=3,
        used_slots=1600,
        wasted_slots=56,
    )
    load = WorkerLoad(12, 4, 400, 100, 220, 9000, 51_000, 34_000, 300, 5 << 30, 0, 15, counts)
    memory = Memory(988 << 20, 2 << 30, 4 << 30, 12 << 10, 6384, 3, 21_000.0, 9e9)
    return worker(epoch, load=load, memory=memory)


def gateway(requests: Sequence[RequestRecord] = (), **changes: Any) -> GatewayRecord:
    return GatewayRecord(
        GATEWAY, "http://127.0.0.1:8000", "demo", 1.0, Objective(1500.0, 80.0), list(requests), **changes
    )


def in_progress(state: Any) -> RequestRecord:
    return RequestRecord(f"{GATEWAY}-ff", state, 1.0, 20, 0, PREFILL, DECODE)


def write(url: str, action: Callable[[Store], Awaitable[None]]) -> None:
    """Runs `action` on a connection and a thread of its own: where a browser is driven, an event loop runs already."""

    async def run() -> None:
        store = connect(url)
        try:
            await action(store)
        finally:
            await store.aclose()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()


def register(url: str, *records: WorkerRecord | GatewayRecord, ago: float = 0.0) -> None:

    async def action(store: Store) -> None:
        for record in records:
            await publish(store, SIGNER, record, time.time() - ago)

    write(url, action)


def end(url: str, *records: FinishedRecord) -> None:
    write(url, lambda store: add_finished(store, list(records)))


def mark(url: str, *marks: RunMark) -> None:

    async def action(store: Store) -> None:
        for each in marks:
            await add_run_mark(store, each)

    write(url, action)


def sample(url: str, *samples: StatsSample) -> None:

    async def action(store: Store) -> None:
        for one in samples:
            await add_stats(store, one)

    write(url, action)


class Heart:
    """Keeps a prefill worker, a decode worker and a gateway registered while it beats."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> "Heart":
        register(self._url, sharing_worker(), worker(DECODE), gateway())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            register(self._url, sharing_worker(), worker(DECODE), gateway())
