"""Harms one service of an instance under load, and prints what clients lose, and when the service is back.

    python -m benchmarks.stress.deaths stop|kill|redis [--victim decode-0] [--seconds 100] [--streams 8]

- `stop`, `kill`: a worker is stopped by SIGSTOP, or killed by SIGKILL.
- `redis`: the embedded Redis server is killed.

The services are those of `baton up --decode 2` on the demo model, under its supervisor. Clients repeat requests, each a
stream of 200 tokens. Printed are the numbers of whole and failed answers, the longest wait for a next token, and the
time until the service took work again.
"""

import argparse
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import redis

from contracts.errors import GatewayError
from infra.completions_client import CompletionsClient
from infra.config.engine import EngineOptions
from infra.network.listening import http_url
from infra.network.sealing import new_secret
from infra.process.status import read_status
from infra.redis.clients import connect_blocking
from launcher.checking.preflight import check_port
from launcher.host.process import READY_STAGE, Process, answers
from launcher.host.processes import Processes, environment, host_deployment
from launcher.host.redis_server import redis_service
from launcher.host.signals import Signals
from launcher.host.supervisor import Supervisor
from launcher.instance.log_file import LogFile
from launcher.options import ROOT, UpConfig
from launcher.stages import StageDisplay

LOAD_BEFORE_S = 5.0  # s of load before the harm
LOOK_INTERVAL_S = 0.1
ANSWER_TOKENS = 200
KILLED_SERVICES = ("decode-0", "prefill-0")
WORKER_COUNT = 3


@dataclass
class Load:
    """Counts of all clients, each a thread."""

    url: str
    sentences: int  # of a prompt
    over: threading.Event = field(default_factory=threading.Event)
    whole: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0  # s that a client waited for its next token, or its first

    def client(self, number: int) -> None:
        endpoint = CompletionsClient(self.url)
        body = {"model": "baton-demo", "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
        while not self.over.is_set():
            at = time.monotonic()
            prompt = " ".join([f"Story {number}."] + [f"It is part {self.whole}."] * (self.sentences - 1))
            try:
                for _ in endpoint.stream("/v1/completions", {**body, "prompt": prompt}):
                    now = time.monotonic()
                    self.longest, at = max(self.longest, now - at), now
                    if self.over.is_set():
                        return
                self.whole += 1
            except GatewayError as error:
                self.longest = max(self.longest, time.monotonic() - at)
                if self.over.is_set():
                    return
                self.failed[str(error)[:90]] += 1
                self.over.wait(1.0)


class Instance:
    """The services of one instance."""

    def __init__(self, directory: Path, signals: Signals, victim: str) -> None:
        self.directory = directory
        port = check_port("--port", "127.0.0.1", 0)
        engine = EngineOptions(dtype="fp32", kv_memory=64 << 20)
        self.config = UpConfig(device="cpu", port=port, dashboard_port=0, prefill=1, decode=2, engine=engine)
        self.url = http_url(self.config.host, port)
        self.server, self.redis_url = redis_service(directory)
        self.status = directory / f"{victim}.status"
        settings = environment(os.environ, ROOT, directory)
        stages = StageDisplay()
        log = LogFile(directory / "log", self.config.log_bytes, self.config.log_files, stages.say)
        self.supervisor = Supervisor(ROOT, settings, log, stages, signals, self.config.silent_seconds)

    def services(self) -> list[Process]:
        secret = self.directory / "secret"
        secret.touch(mode=0o600)
        secret.write_text(new_secret())
        processes = Processes(self.config, self.directory, self.config.model, self.redis_url, secret)
        return [*processes.workers(), *processes.gateways()]

    def harm(self, how: str) -> int:
        if how == "redis":
            with connect_blocking(self.redis_url) as store:
                pid = int(dict(store.info("server"))["process_id"])
            os.kill(pid, signal.SIGKILL)
            return pid
        status = read_status(self.status)
        assert status is not None
        os.kill(status.pid, signal.SIGSTOP if how == "stop" else signal.SIGKILL)
        return status.pid

    def workers(self) -> int:
        lines = httpx.get(f"{self.url}/metrics", timeout=5).text.splitlines()
        return sum(line.startswith("baton:worker_usable{") for line in lines)

    def is_back(self, how: str, harmed: int) -> bool:
        if how == "redis":
            try:
                with connect_blocking(self.redis_url) as store:
                    return bool(store.ping()) and answers(f"{self.url}/ready")
            except redis.RedisError:
                return False
        status = read_status(self.status)
        return status is not None and status.stage == READY_STAGE and status.pid != harmed


def watch(instance: Instance, load: Load, how: str, seconds: float, streams: int) -> None:
    clients = [threading.Thread(target=load.client, args=[number], daemon=True) for number in range(streams)]
    for client in clients:
        client.start()
    time.sleep(LOAD_BEFORE_S)
    began = time.monotonic()
    harmed = instance.harm(how)
    back = None
    known = None
    while time.monotonic() - began < seconds:
        time.sleep(LOOK_INTERVAL_S)
        if known is None and how != "redis" and instance.workers() < WORKER_COUNT:
            known = time.monotonic() - began
        if back is None and instance.is_back(how, harmed):
            back = time.monotonic() - began
    load.over.set()
    for client in clients:
        client.join(5.0)
    waits = sum(client.is_alive() for client in clients)
    print(f"{how}: {load.whole} requests answered whole, {load.failed.total()} failed, {waits} clients still wait")
    for reason, count in load.failed.most_common(3):
        print(f"  {count} times: {reason}")
    longest = max(load.longest, seconds if waits else 0.0)
    print(f"  longest wait for a token: {longest:.1f} s{' or more' if waits else ''}")
    if known is not None:
        print(f"  known as dead after {known:.1f} s")
    print(f"  back after {back:.1f} s" if back is not None else f"  not back within {seconds:.0f} s", flush=True)
    os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.stress.deaths", description=__doc__, formatter_class=form)
    parser.add_argument("how", choices=["stop", "kill", "redis"])
    parser.add_argument(
        "--victim", choices=KILLED_SERVICES, default=KILLED_SERVICES[0], help="what is stopped or killed"
    )
    parser.add_argument("--sentences", type=int, default=1, help="of each prompt, some six tokens each")
    parser.add_argument("--seconds", type=float, default=100.0, help="time that is watched after the harm")
    parser.add_argument("--streams", type=int, default=8, help="clients at a time")
    asked = parser.parse_args()
    with Signals().installed() as signals, tempfile.TemporaryDirectory(prefix="baton-deaths-") as directory:
        instance = Instance(Path(directory), signals, asked.victim)
        try:
            instance.supervisor.start([instance.server])
            instance.supervisor.start(instance.services())
            load = Load(instance.url, asked.sentences)
            arguments = (instance, load, asked.how, asked.seconds, asked.streams)
            threading.Thread(target=watch, args=arguments, daemon=True).start()
            instance.supervisor.watch()
        finally:
            instance.supervisor.stop(host_deployment(instance.config).stop_order())


if __name__ == "__main__":
    main()
