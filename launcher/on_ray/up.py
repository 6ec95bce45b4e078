"""Starts a deployment on a Ray cluster (`./baton up --on ray`), and stops it at a signal."""

import os
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import ray
from msgspec.structs import replace
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contracts.errors import BatonError, ConfigError
from infra.cli import parse
from infra.network.listening import http_url
from launcher import greeting
from launcher.checking.settings import check_settings, checked_port, with_absolute_key_paths
from launcher.host.processes import OPERATOR_KEY_FILE
from launcher.host.signals import Signals
from launcher.instance.instances import Instance, Record
from launcher.instance.run_directory import run_directory
from launcher.instance.state_directory import new_log
from launcher.on_ray.cluster import ClusterError, connected, node_resources
from launcher.on_ray.code import runtime_env
from launcher.on_ray.control.controller import CONTROLLER_NAME, DeploymentController
from launcher.on_ray.leftovers import leftovers
from launcher.on_ray.node.check import check_nodes
from launcher.on_ray.node.redis import free_port
from launcher.on_ray.order import RayPlan, RedisServer
from launcher.on_ray.overview import Overview
from launcher.on_ray.placement import NodeResources, lacking, process_resources
from launcher.on_ray.planning import make_plan, redis_node, scaling_rules, with_decided_workers
from launcher.on_ray.ray_log import RayLog
from launcher.on_ray.reports import Reports, taken_down
from launcher.options import ROOT, UpConfig
from launcher.refusal import refused
from launcher.stages import StageDisplay
from launcher.words import BAD_INPUT_STATUS

CONCURRENT_CALLS = 16  # of the controller
TASK_TIMEOUT_S = 30.0
DETACHED_NOTE = "It goes on without this process: ./baton status --on ray says how it is, ./baton down ends it."


def up(arguments: Sequence[str]) -> int:
    """Runs a deployment. Returns the exit status: 0 stopped by a signal or detached, 1 failed, 2 bad input."""
    stages = StageDisplay(sys.stdout)
    try:
        asked = parse(UpConfig, arguments, "baton up", os.environ)
        scaling_rules(asked)
        if asked.idle_unload:
            raise ConfigError("--idle-unload", asked.idle_unload, "works on one host: Ray's workers stay loaded")
        directory = check_settings(asked)
        model = asked.model if directory is None else str(Path(asked.model).expanduser().absolute())
        config = replace(with_absolute_key_paths(asked), model=model, port=checked_port(asked))
        log = new_log(config.log_bytes, config.log_files, stages.say, config.log_format)
    except BatonError as error:
        return refused(error)
    if open_to_all := greeting.open_to_all(config):
        stages.say(open_to_all)
    try:
        with log, run_directory() as run:
            ray_log = RayLog(log)
            with redirect_stdout(ray_log), redirect_stderr(ray_log):
                Up(config, directory, run, log.path, stages).run()
    except BatonError as error:
        stages.settle()
        print(f"error: {error} (log: {log.path})", file=sys.stderr)
        return BAD_INPUT_STATUS if isinstance(error, ClusterError) else 1
    return 0


class Up:
    """One run of the command."""

    def __init__(self, config: UpConfig, directory: Path | None, run: Path, log: Path, stages: StageDisplay) -> None:
        self._config = config
        self._directory = directory
        self._run = run
        self._log = log
        self._stages = stages
        self._began = time.monotonic()

    def run(self) -> None:
        """Connects, checks, starts, watches and stops. Raises `BatonError`."""
        place = self._config.ray
        self._stages.show("log", str(self._log))
        self._stages.show("cluster", "connecting", note=place.ray_address)
        env = runtime_env(ROOT)
        with Signals().installed() as signals, connected(place.ray_address, place.ray_namespace, env):
            self._serve(self._checked_plan(), signals)

    def _checked_plan(self) -> RayPlan:
        namespace = self._config.ray.ray_namespace
        if found := leftovers():
            raise ClusterError(
                f"--ray-namespace: {namespace!r}: has actors already ({', '.join(found[:8])}): ./baton down ends them,"
                " another namespace lets both run"
            )
        nodes = node_resources()
        here = ray.get_runtime_context().get_node_id()
        addresses = sorted({node.address for node in nodes.values()})
        self._stages.show("cluster", f"{len(nodes)} nodes at {', '.join(addresses)}")
        config, notes = with_decided_workers(self._config, nodes, self._directory)
        self._config = config
        for each in notes:
            self._stages.say(each)
        where = redis_node(config, nodes, here)
        plan = make_plan(config, self._run, nodes, here, None)
        if wrong := lacking(list(nodes.values()), process_resources(plan)):
            raise ClusterError(
                f"--prefill {config.prefill} --decode {config.decode} --gateways {config.gateways}: {wrong}"
            )
        self._stages.show("nodes", "sending the code, looking for the model")
        able = {node: room for node, room in nodes.items() if room.total.get("CPU") or node == here}
        check_nodes(able, config.model, readable(config), config.device)
        self._stages.show("nodes", "checked")
        if not config.redis:
            plan = make_plan(config, self._run, nodes, here, self._server(nodes[where], where))
        return plan

    def _server(self, room: NodeResources, node: str) -> RedisServer:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        call = ray.remote(free_port).options(num_cpus=0, scheduling_strategy=there).remote(room.address)
        port: int = ray.get(call, timeout=TASK_TIMEOUT_S)
        directory = self._config.ray.redis_directory
        return RedisServer(address=room.address, port=port, password=secrets.token_hex(24), directory=directory)

    def _serve(self, plan: RayPlan, signals: Signals) -> None:
        config, stages = self._config, self._stages
        options = {"name": CONTROLLER_NAME, "namespace": plan.namespace, "lifetime": "detached", "max_restarts": -1}
        handle = (
            ray.remote(DeploymentController)
            .options(num_cpus=0, max_concurrency=CONCURRENT_CALLS, **options)
            .remote(plan)
        )
        leave = False
        try:
            reports = Reports(handle, stages, keeps=True)
            overview = reports.follow(signals, lambda phase: phase != "starting", show=True)
            if overview.phase == "running" and not signals.asked_to_stop:
                leave = config.ray.detach
                self._greet(DETACHED_NOTE if leave else greeting.STOP_NOTE)
                if not leave:
                    overview = self._watch(reports, signals)
            if overview.error:
                raise BatonError(overview.error)
        finally:
            if not leave:
                taken_down(handle, stages, signals)

    def _watch(self, reports: Reports, signals: Signals) -> Overview:
        config = self._config
        own = self._run / OPERATOR_KEY_FILE
        key_file = str(own) if own.exists() else ""
        url = http_url(config.host, config.port, bool(config.tls_cert))
        instance = Instance(url, os.getpid(), config.model, time.time(), str(self._log), key_file, config.tls_cert)
        with Record(instance, self._stages.say):
            return reports.follow(signals, lambda phase: phase != "running", show=False)

    def _greet(self, ending: str) -> None:
        config = self._config
        own = self._run / OPERATOR_KEY_FILE
        url = http_url(config.host, config.port, bool(config.tls_cert))
        key = own.read_text() if own.exists() else ""
        seconds = time.monotonic() - self._began
        self._stages.say(greeting.text(config, url, self._directory, seconds, self._log, key, ending))


def readable(config: UpConfig) -> list[tuple[str, str]]:
    """Returns (option, path) for each file that a service opens on its node."""
    engine = config.engine
    pairs = [("--medusa", engine.medusa), ("--eagle", engine.eagle), ("--lora-root", engine.lora_root)]
    pairs += [("--tls-cert", config.tls_cert), ("--tls-key", config.tls_key)]
    pairs += [("--api-keys", path) for path in config.api_keys]
    return [(option, path) for option, path in pairs if path]
