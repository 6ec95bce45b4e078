"""Starts servers to load, one at a time: ours as `baton up` does, and vLLM's OpenAI server in its own environment."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.setup import PEERS, PeerError, python_of
from benchmarks.processes.children import child, last_line
from launcher.checking.preflight import check_port
from launcher.host.process import answers
from launcher.stages import StageDisplay

HOST = "127.0.0.1"
START_TIMEOUT_S = 600.0
POLL_SECONDS = 0.5
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
VLLM = next(peer for peer in PEERS if peer.name == "vllm")


@dataclass(frozen=True)
class Server:
    """A server, whose `path` answers 200 when it takes requests."""

    name: str
    command: tuple[str, ...]
    settings: Mapping[str, str]
    path: str
    port: int
    log: Path


def baton(directory: Path, model: Path, dtype: str, longest: int, prefill: int, tpot_ms: float) -> Server:
    """A gateway, one decode worker and `prefill` prefill workers, from this checkout.

    Chunks of prompts end a decode worker's step after half of the TPOT that is wanted, as the manual advises.
    """
    port = check_port("--port", HOST, 0)
    command = [sys.executable, "-m", "launcher", "up", "--model", str(model), "--dtype", dtype, "--device", "cpu"]
    command += ["--host", HOST, "--port", str(port), "--dashboard-port", "0", "--max-model-len", str(longest)]
    command += ["--prefill", str(prefill), "--step-ms", str(tpot_ms / 2)]
    name = "baton" if prefill else "baton-unsplit"
    return Server(name, tuple(command), {}, "/ready", port, directory / f"{name}-server.log")


def vllm(directory: Path, model: Path, dtype: str, longest: int, threads: int) -> Server:
    port = check_port("--port", HOST, 0)
    command = [str(python_of(directory, VLLM)), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--dtype", DTYPES[dtype], "--host", HOST, "--port", str(port), "--max-model-len", str(longest)]
    settings = VLLM.settings(directory / VLLM.name, threads)
    return Server("vllm", tuple(command), settings, "/health", port, directory / "vllm-server.log")


@contextmanager
def serving(server: Server, stages: StageDisplay) -> Iterator[str]:
    """Starts a server, gives its URL when it takes requests, and ends it on exit. Raises `PeerError` if it fails."""
    server.log.unlink(missing_ok=True)
    with child(server.command, server.log, settings=server.settings) as process:
        url = f"http://{HOST}:{server.port}"
        _wait(server, process, url, stages)
        yield url
        stages.show(server.name, "stopping")
    stages.show(server.name, "stopped")
    stages.settle()


def _wait(server: Server, process: subprocess.Popen[str], url: str, stages: StageDisplay) -> None:
    began = time.monotonic()
    while not answers(url + server.path, POLL_SECONDS):
        waited = time.monotonic() - began
        if process.poll() is not None:
            raise PeerError(f"{server.name}: has ended: {last_line(server.log)} (log: {server.log})")
        if waited > START_TIMEOUT_S:
            raise PeerError(f"{server.name}: is not ready after {START_TIMEOUT_S:.0f} s (log: {server.log})")
        stages.show(server.name, "starting", note=f"({waited:.0f} s)")
        time.sleep(POLL_SECONDS)
    stages.show(server.name, "ready")
