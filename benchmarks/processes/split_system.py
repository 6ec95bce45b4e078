"""Starts one prefill and one decode worker, service by service: each can be watched, and none is started again."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import msgspec
import redis

from benchmarks.processes.children import child, last_line
from contracts.errors import BatonError
from infra.config.engine import EngineOptions
from infra.config.transfer import TransferOptions
from infra.network.listening import http_url
from infra.network.sealing import new_secret
from infra.redis.clients import connect_blocking
from infra.redis.records import FinishedRecord, WorkerRecord
from infra.redis.registry import FINISHED_KEY, index_key, read_unchecked, record_key
from launcher.checking.preflight import check_port
from launcher.host.process import READY_STAGE, Process
from launcher.host.processes import Processes, environment
from launcher.host.redis_server import redis_service
from launcher.options import ROOT, UpConfig

HOST = "127.0.0.1"
EXACT = EngineOptions(dtype="fp32", kv_memory=64 << 20)  # answers do not depend on the batch
USUAL = TransferOptions()
START_SECONDS = 300.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class SplitSystem:
    """A gateway, a prefill and a decode worker under load, and the secret that an insider has."""

    url: str
    directory: Path  # holds a log of each service
    secret: bytes
    store: redis.Redis
    processes: dict[str, subprocess.Popen[str]]

    def records(self) -> dict[str, WorkerRecord]:
        epochs: list[bytes] = self.store.zrange(index_key("worker"), 0, -1)  # type: ignore[assignment]
        keys = [record_key("worker", epoch.decode()) for epoch in epochs]
        bodies: list[bytes | None] = self.store.mget(keys) if keys else []  # type: ignore[assignment]
        records = [record for body in bodies if body and (record := read_unchecked(body, WorkerRecord))]
        return {record.role: record for record in records}

    def finished(self) -> list[FinishedRecord]:
        entries: list[tuple[bytes, dict[bytes, bytes]]] = self.store.xrange(FINISHED_KEY)  # type: ignore[assignment]
        return [msgspec.json.decode(fields[b"json"], type=FinishedRecord) for _, fields in entries]


@contextmanager
def split_system(
    model: str,
    directory: Path,
    engine: EngineOptions = EXACT,
    transfer: TransferOptions = USUAL,
    worker: Sequence[str] = (),
    gateway: Sequence[str] = (),
    key: str = "",
) -> Iterator[SplitSystem]:
    """Starts the system on the CPU, and ends it on exit. Raises `BatonError` if a service does not start.

    `worker` and `gateway` are further words of the command lines; `key` is an operator's API key, if one is required.
    """
    secret = directory / "secret"
    secret.touch(mode=0o600)
    secret.write_text(new_secret())
    port = check_port("--port", HOST, 0)
    config = UpConfig(
        model=model, prefill=1, decode=1, device="cpu", port=port, dashboard_port=0, engine=engine, transfer=transfer
    )
    server, url = redis_service(directory)
    made = Processes(config, directory, model, url, secret)
    settings = environment(os.environ, ROOT, directory)
    processes: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as stack:
        workers = [replace(service, command=(*service.command, *worker)) for service in made.workers()]
        # Also for short prompts, which would need no handoff.
        gateways = [replace(each, command=(*each.command, "--handoff", "always", *gateway)) for each in made.gateways()]
        for group in ([server], [*workers, *gateways]):
            for service in group:
                log = directory / f"{service.name}.log"
                processes[service.name] = stack.enter_context(
                    child(service.command, log, settings={**settings, **service.settings})
                )
            for service in group:
                _wait(service, processes[service.name], directory / f"{service.name}.log")
        store = connect_blocking(url)
        stack.callback(store.close)
        address = http_url(HOST, config.port)
        _wait_for_usable(address, 2, {"authorization": f"Bearer {key}"} if key else {})
        yield SplitSystem(address, directory, secret.read_bytes().strip(), store, processes)


def _wait(service: Process, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (status := service.watch()) is None or status.stage != READY_STAGE:
        if process.poll() is not None or time.monotonic() > deadline:
            raise BatonError(f"{service.name} does not become ready: {last_line(log)}")
        time.sleep(LOOK_SECONDS)


def _wait_for_usable(gateway: str, workers: int, headers: dict[str, str]) -> None:
    """Waits until the gateway uses all workers: it is ready with a decode worker alone. Raises `BatonError`."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        lines = httpx.get(f"{gateway}/metrics", headers=headers, timeout=START_SECONDS).text.splitlines()
        if sum(line.startswith("baton:worker_usable{") and line.endswith(" 1.0") for line in lines) == workers:
            return
        if time.monotonic() > deadline:
            raise BatonError(f"the gateway does not use all {workers} workers")
        time.sleep(LOOK_SECONDS)
