"""The workers of a host as compose.yaml starts them: real processes, beside a stand-in for the driver's program."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from infra.cli import parse
from infra.config.worker import WorkerConfig
from infra.network.sealing import new_secret
from infra.process.status import read_status
from infra.redis.clients import connect_blocking
from infra.redis.registry import index_key
from launcher.host.redis_server import redis_service
from launcher.is_ready import is_ready
from launcher.options import DEMO_MODEL, ROOT
from tests.nvidia_smi import write_nvidia_smi
from tests.waiting import DEADLINE_S, LONG_DEADLINE_S, children, wait_until

SERVICES = {"prefill_service": "prefill", "decode_service": "decode"}


class HostWorkers:
    """A running `launcher.host.host_workers`, its output in a file."""

    def __init__(self, directory: Path, redis: str, environment: dict[str, str], *options: str) -> None:
        self.status, self.output = directory / "status", directory / "output"
        secret = directory / "secret"
        secret.write_text(new_secret())
        (_, flag, module, *words) = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["workers"][
            "command"
        ]
        defaults = [word.replace("}", "").partition("${") for word in words]
        told = [begin + variable.partition(":-")[2] for begin, _, variable in defaults]
        here = [f"--redis={redis}", f"--secret-file={secret}", f"--status-file={self.status}", f"--model={DEMO_MODEL}"]
        command = [sys.executable, flag, module, *told, *here, "--announce=", *options]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)

    def workers(self) -> dict[int, list[str]]:
        """The words of each worker's command line, by its process id."""
        found = {}
        for pid in children(self.process.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if len(words) > 4 and words[3] in SERVICES:
                found[pid] = words[3:-1]
        return found

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.output.read_text() or self.process.poll() is not None, text, LONG_DEADLINE_S)
        assert text in self.output.read_text()


@contextmanager
def running(
    directory: Path, environment: dict[str, str], *options: str, redis: str = "redis://127.0.0.1:1"
) -> Iterator[HostWorkers]:
    made = HostWorkers(directory, redis, environment, *options)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def gpu_host(directory: Path, gpus: int, **more: str) -> dict[str, str]:
    """The environment of a process on a host with GPUs, and with a PyTorch that is not the CPU build by its name."""
    write_nvidia_smi(directory, gpus)
    installed = directory / "torch-2.13.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: torch\nVersion: 2.13.0\n")
    paths = {"PATH": f"{directory}:{os.environ['PATH']}", "PYTHONPATH": f"{directory}:{ROOT}"}
    inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**inherited, **paths, **more}


@pytest.mark.parametrize(
    ("gpus", "asked", "roles", "said"),
    [
        (1, {}, ["decode"], "one GPU: decode workers serve whole requests"),
        (2, {}, ["prefill", "decode"], "2 GPUs: 1 prefill worker and 1 decode worker, each on"),
        (3, {}, ["prefill", "decode", "decode"], "3 GPUs: 1 prefill worker and 2 decode workers, each on"),
        (8, {}, None, "8 GPUs: "),
        (
            8,
            {"prefill": 5},
            ["prefill"] * 5 + ["decode"] * 3,
            "8 GPUs: 5 prefill workers and 3 decode workers, each on",
        ),
    ],
)
def test_each_gpu_has_one_worker(
    gpus: int, asked: dict[str, int], roles: list[str] | None, said: str, tmp_path: Path
) -> None:
    """The demo model's split of 8 GPUs is the cost model's, which other tests hold."""
    options = [f"--{role}={count}" for role, count in asked.items()]
    with running(tmp_path, gpu_host(tmp_path, gpus), *options) as host:
        wait_until(
            lambda: len(host.workers()) == gpus or host.process.poll() is not None, "the workers", LONG_DEADLINE_S
        )
        workers = host.workers()
        seen = [dict(entry.split("=", 1) for entry in environment(pid)) for pid in workers]
        status = read_status(host.status)
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(DEADLINE_S) == 0, host.output.read_text()
        assert children(host.process.pid) == []
    assert sorted(one["CUDA_VISIBLE_DEVICES"] for one in seen) == [str(gpu) for gpu in range(gpus)]
    told = [parse(WorkerConfig, words[1:], words[0]).engine for words in workers.values()]
    assert [(one.device, one.gpu_memory_utilization) for one in told] == [("cuda", 0.9)] * gpus
    started = sorted((SERVICES[words[0]] for words in workers.values()), reverse=True)
    assert started == roles if roles is not None else {"prefill", "decode"} == set(started)
    assert host.output.read_text().startswith(said)
    assert status is not None and status.stage != "ready"


def environment(pid: int) -> list[str]:
    return [entry for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if entry]


def test_the_user_may_choose_gpus_and_their_share(tmp_path: Path) -> None:
    chosen = gpu_host(tmp_path, 4, CUDA_VISIBLE_DEVICES="3")
    with running(tmp_path, chosen, "--gpu-memory-utilization=0.5", "--prefill=1") as host:
        wait_until(lambda: len(host.workers()) == 2 or host.process.poll() is not None, "the workers", LONG_DEADLINE_S)
        workers = host.workers()
        assert {entry for pid in workers for entry in environment(pid) if entry.startswith("CUDA_VISIBLE")} == {
            "CUDA_VISIBLE_DEVICES=3"
        }
        assert all("--gpu-memory-utilization=0.25" in words for words in workers.values())


def test_a_host_without_gpus_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with running(tmp_path, gpu_host(tmp_path, 0)) as host:
        assert host.process.wait(LONG_DEADLINE_S) == 2
        assert host.output.read_text() == "error: --device: 'cuda': nvidia-smi shows no GPU on this host\n"


def test_on_a_cpu_they_serve_and_one_that_dies_is_started_again_alone(tmp_path: Path) -> None:
    service, url = redis_service(tmp_path)
    server = subprocess.Popen(service.command)
    options = ("--device=cpu", "--kv-memory=64M", "--dtype=fp32", "--cpu-backend=torch")
    try:
        wait_until(lambda: service.watch() is not None, "Redis")
        with running(tmp_path, dict(os.environ), *options, redis=url) as host, connect_blocking(url) as store:
            ready = [sys.executable, "-m", "launcher.is_ready", str(host.status)]
            assert subprocess.run(ready, cwd=ROOT).returncode == 1
            wait_until(lambda: is_ready(str(host.status)), "all workers", LONG_DEADLINE_S)
            assert store.zcard(index_key("worker")) == 2
            (died,) = [pid for pid, words in host.workers().items() if words[0] == "decode_service"]
            os.kill(died, signal.SIGKILL)
            host.wait_for("decode-0 died (killed by SIGKILL")
            wait_until(lambda: not is_ready(str(host.status)), "the missing worker to be seen")
            host.wait_for("decode-0 is ready again")
            wait_until(lambda: is_ready(str(host.status)), "all workers")
            workers = host.workers()
            assert len(workers) == 2 and died not in workers
            assert host.output.read_text().count("prefill-0 is ready") == 1
            host.process.send_signal(signal.SIGTERM)
            assert host.process.wait(DEADLINE_S) == 0
    finally:
        server.kill()
        server.wait()
