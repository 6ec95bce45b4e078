"""A whole Baton: Valkey, workers, gateway and dashboard, each in a process of its own, on its own ports.

All are on this host's loopback address, unless a test says which services are on which host.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import httpx
import msgspec
import redis
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from benchmarks.processes.python_path import python_path
from infra.network.sealing import new_secret
from infra.process.status import read_status
from infra.redis.clients import connect_blocking
from infra.redis.records import FinishedRecord, StatsSample, WorkerRecord
from infra.redis.registry import FINISHED_KEY, STATS_KEY, index_key, read_unchecked, record_key
from launcher.deployment import SERVICE_ENVIRONMENT
from launcher.host.redis_server import redis_service
from tests.e2e.harness.forks import ROOT, Forked, Start
from tests.e2e.harness.host import THIS_HOST, Host
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S, LONG_DEADLINE_S, patient, wait_until

CLOCKS_DIFFER = 0.25
"""Seconds by which a worker may be wrong about the server's time: half of what its first answer took."""


class System:
    """Started by `with`; everything is stopped and gone after it."""

    def __init__(
        self,
        directory: Path,
        model: Path,
        *,
        prefill: int = 1,
        decode: int = 1,
        worker: Sequence[str] = (),
        decode_only: Sequence[str] = (),
        gateway: Sequence[str] = (),
        handoff: str = "always",
        dashboard: bool = False,
        decode_module: str = "decode_service",
        environment: dict[str, str] | None = None,
        host_of: Callable[[str], Host] = lambda name: THIS_HOST,
        forks_ranks: bool = False,
    ) -> None:
        """`forks_ranks`: a worker's other ranks are forks of it (`forked_ranks.py`), which begin sooner."""
        self.directory = directory
        self.model = model
        service, self.redis_url = redis_service(directory)
        self._redis_command = service.command
        self.store: redis.Redis = connect_blocking(self.redis_url)
        self.workers: dict[str, Forked] = {}
        self.gateway_url = self.dashboard_url = ""
        self.killed: set[int] = set()  # processes that a test has ended by itself
        self.host_of = host_of  # by the service's name
        self._counts = {"prefill": prefill, "decode": decode}
        self._modules = {"prefill": "prefill_service", "decode": decode_module}
        self._options = {"prefill": list(worker), "decode": [*worker, *decode_only]}
        self._gateway, self._dashboard = ["--handoff", handoff, *gateway], dashboard
        self._environment = {**SERVICE_ENVIRONMENT, **os.environ, **(environment or {}), "PYTHONPATH": python_path()}
        self._processes: list[subprocess.Popen[bytes] | Forked] = []
        self._forks_ranks = forks_ranks
        self._log = (directory / "log").open("ab")

    def __enter__(self) -> "System":
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        codes = self._stop()
        if error is None:
            assert set(codes) == {0}, f"exit codes {codes}:\n{self.log()}"

    def _start(self) -> None:
        self.start_redis()
        (self.directory / "secret").write_text(new_secret())
        shared = ["--redis", self.redis_url]
        serving = [*shared, "--model", str(self.model), "--secret-file", str(self.directory / "secret")]
        self._serving = [*serving, "--busy-page", str(self.directory / "busy")]
        for role, count in self._counts.items():
            for number in range(count):
                self.start_worker(f"{role}-{number}")
        for name in self.workers:
            self.address(name)
        self.gateway = self._serve("gateway", "gateway", [*serving, "--port", "0", *self._gateway])
        self.gateway_url = self.address("gateway")
        wait_until(self._takes_requests, "the gateway to know its workers")
        if self._dashboard:
            self._serve("dashboard", "dashboard", [*shared, "--port", "0", "--gateway", self.gateway_url])
            self.dashboard_url = self.address("dashboard")

    def start_worker(self, name: str, *more: str) -> None:
        """Starts `prefill-N` or `decode-N` as the others of its role were: a new one, or one that a test has killed.

        It has `more` options than they have.
        """
        self._processes = [process for process in self._processes if process.pid not in self.killed]
        (self.directory / f"{name}.status").unlink(missing_ok=True)
        role = name.partition("-")[0]
        self.workers[name] = self._serve(name, self._modules[role], [*self._serving, *self._options[role], *more])

    def kill(self, name: str) -> None:
        """Kills a worker, as nothing can prevent, and waits until it has ended."""
        process = self.workers.pop(name)
        self.killed.add(process.pid)
        process.kill()
        process.wait(patient(DEADLINE_S))

    def start_redis(self) -> None:
        """Starts the server, and waits until it answers: at the start, and where a test has ended it."""
        self.redis = subprocess.Popen(
            self._redis_command,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self._processes.insert(0, self.redis)  # the last to be stopped
        wait_until(self._answers, "Redis")

    def _serve(self, name: str, module: str, options: list[str]) -> Forked:
        status = str(self.directory / f"{name}.status")
        host = self.host_of(name)
        options = [*options, "--host", host.address, "--status-file", status]
        process = Forked(Start(module, options, self._environment, host, self._forks_ranks), self._log)
        self._processes.append(process)
        return process

    def address(self, name: str) -> str:
        """Where a service is ready; waits for it."""
        path = self.directory / f"{name}.status"

        def ready() -> bool:
            status = read_status(path)
            assert status is None or status.stage != "failed", f"{name}: {status}"
            assert all(process.poll() is None for process in self._processes), f"a process ended:\n{self.log()}"
            return status is not None and status.stage == "ready"

        wait_until(ready, f"{name} to be ready", LONG_DEADLINE_S)
        status = read_status(path)
        assert status is not None
        return status.address

    def name_of(self, epoch: str) -> str:
        (address,) = [record.address for record in self.records() if record.epoch == epoch]
        (name,) = [name for name in self.workers if self.address(name) == address]
        return name

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def records(self) -> list[WorkerRecord]:
        epochs: list[bytes] = self.store.zrange(index_key("worker"), 0, -1)  # type: ignore[assignment]
        bodies: list[bytes | None] = self.store.mget([record_key("worker", each.decode()) for each in epochs])  # type: ignore[assignment]
        return [record for body in bodies if body and (record := read_unchecked(body, WorkerRecord))]

    def finished(self) -> list[FinishedRecord]:
        entries: list[tuple[bytes, dict[bytes, bytes]]] = self.store.xrange(FINISHED_KEY)  # type: ignore[assignment]
        return [msgspec.json.decode(fields[b"json"], type=FinishedRecord) for _, fields in entries]

    def wait_until_idle(self, seconds: float = 30.0) -> list[WorkerRecord]:
        """Waits until no worker holds a sequence or a block; their records then tell of all that was before."""
        now: tuple[int, int] = self.store.time()
        since = now[0] + now[1] / 1e6 + CLOCKS_DIFFER
        records: list[WorkerRecord] = []

        def idle() -> bool:
            nonlocal records
            told = self._told_since(since)  # each after the record that it belongs to
            records = self.records()
            return len(records) == len(self.workers) and not any(
                record.epoch not in told or record.load.running or record.load.waiting or record.load.blocks_used
                for record in records
            )

        wait_until(idle, f"idle workers, but {[record.load for record in self.records()]}", seconds)
        return records  # those that were judged: on a slow machine one may expire before it is written again

    def _told_since(self, since: float) -> set[str]:
        """Returns the epochs of workers that have told, since that time of the server's, what was so after it."""
        entries: list[tuple[bytes, dict[bytes, bytes]]] = self.store.xrange(STATS_KEY, int(1000 * since))  # type: ignore[assignment]
        samples = [msgspec.json.decode(fields[b"json"], type=StatsSample) for _, fields in entries]
        return {sample.epoch for sample in samples if sample.at > since}

    def _takes_requests(self) -> bool:
        """From the first pair of workers on, the gateway is ready; here requests go to all of them."""
        with self.host_of("gateway").inside():
            if httpx.get(f"{self.gateway_url}/ready", timeout=DEADLINE_S, verify=PLAIN).status_code != 200:
                return False
        return self.usable() == len(self.workers)

    def usable(self) -> int:
        return sum(one.value == 1 for one in self.figures("baton:worker_usable"))

    def figures(self, name: str) -> list[Sample]:
        with self.host_of("gateway").inside():
            page = httpx.get(f"{self.gateway_url}/metrics", timeout=DEADLINE_S, verify=PLAIN).text
        lines = [line for line in page.splitlines() if line.startswith(name + "{")]
        return [one for family in text_string_to_metric_families("\n".join(lines)) for one in family.samples]

    def in_progress(self) -> float:
        return sum(one.value for one in self.figures("baton:requests_in_progress"))

    def retried(self) -> float:
        return sum(one.value for one in self.figures("baton:attempts_retried_total"))

    def _answers(self) -> bool:
        try:
            return bool(self.store.ping())
        except redis.RedisError:
            return False

    def _stop(self) -> list[int]:
        """Stops every process, the gateway first, and returns what each exited with; -9 is one that would not go."""
        codes = []
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(patient(DEADLINE_S))
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            if process.pid not in self.killed:
                codes.append(code)
        self.store.close()
        self._log.close()
        return codes
