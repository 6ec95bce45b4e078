"""Starts prefill and decode workers, service by service: each can be watched, and none is started again."""

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import redis

from benchmarks.processes.children import child
from benchmarks.processes.usable import usable_workers, wait_until
from contracts.kinds import HandoffRule
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


@dataclass(frozen=True)
class SplitSystem:
    """A gateway and its workers under load, and the secret that an insider has."""

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
    *,
    counts: tuple[int, int] = (1, 1),
    handoff: HandoffRule = "always",
    module: Callable[[str], Sequence[str]] = lambda module: (module,),
) -> Iterator[SplitSystem]:
    """Starts the system on the CPU, and ends it on exit. Raises `BatonError` if a service does not start.

    `worker` and `gateway` are further words of the command lines; `key` is an operator's API key, if one is required.
    `counts`: prefill and decode workers. `module` returns the words that run in place of a worker's module.
    """
    secret = directory / "secret"
    secret.touch(mode=0o600)
    secret.write_text(new_secret())
    port = check_port("--port", HOST, 0)
    config = UpConfig(
        model=model,
        prefill=counts[0],
        decode=counts[1],
        device="cpu",
        port=port,
        dashboard_port=0,
        handoff=handoff,
        engine=engine,
        transfer=transfer,
    )
    server, url = redis_service(directory)
    made = Processes(config, directory, model, url, secret)
    settings = environment(os.environ, ROOT, directory)
    processes: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as stack:
        workers = [replace(each, command=(*_run(each.command, module), *worker)) for each in made.workers()]
        gateways = [replace(each, command=(*each.command, *gateway)) for each in made.gateways()]
        for group in ([server], [*workers, *gateways]):
            for service in group:
                log = directory / f"{service.name}.log"
                processes[service.name] = stack.enter_context(
                    child(service.command, log, settings={**settings, **service.settings})
                )
            for service in group:
                log = directory / f"{service.name}.log"
                wait_until(partial(_ready, service), service.name, log, processes[service.name])
        store = connect_blocking(url)
        stack.callback(store.close)
        address = http_url(HOST, config.port)
        wait_until(lambda: usable_workers(address, key) == sum(counts), "all workers", directory / "gateway.log")
        yield SplitSystem(address, directory, secret.read_bytes().strip(), store, processes)


def _run(command: Sequence[str], module: Callable[[str], Sequence[str]]) -> list[str]:
    """Returns the command with the words that run in place of its module, which follows `-m`."""
    at = command.index("-m") + 1
    return [*command[:at], *module(command[at]), *command[at + 1 :]]


def _ready(service: Process) -> bool:
    status = service.watch()
    return status is not None and status.stage == READY_STAGE
