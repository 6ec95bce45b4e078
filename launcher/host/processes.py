"""Makes the processes of a deployment on this host."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from contracts.adapters import parse_sources
from contracts.ids import new_epoch
from infra.config.engine import EngineOptions
from infra.network.listening import http_url
from launcher.deployment import SERVICE_ENVIRONMENT, WORKERS, Deployment, Locations, Service, command, describe
from launcher.devices.gpus import USABLE_MEMORY_SHARE, placements
from launcher.host.idle_unload import IdleWatch
from launcher.host.process import Process, watch_both, watch_http, watch_status_file
from launcher.options import UpConfig

UNLOADED_FILE = "unloaded"  # of the run directory, while an idle model is unloaded
OPERATOR_KEYS_FILE, OPERATOR_KEY_FILE = "api-keys.json", "api-key"
"""Files of the run directory with the instance's operator key, which its dashboard and `baton chat` use."""


def environment(inherited: Mapping[str, str], root: Path, run: Path) -> dict[str, str]:
    """Returns the environment of children: our defaults, the user's variables, and `root` on Python's path.

    Temporary files go into the run directory, and are removed with it: torch and killed processes leave files.
    """
    return {**SERVICE_ENVIRONMENT, **inherited, "PYTHONPATH": str(root), "TMPDIR": str(run)}


def host_deployment(config: UpConfig) -> Deployment:
    """Describes the deployment of `baton up`, with absolute paths."""
    transfer = replace(config.transfer, kv_directory=_absolute(config.transfer.kv_directory))
    config = replace(config, engine=with_absolute_engine_paths(config.engine), transfer=transfer)
    return describe(config, host=config.host, port=config.port, dashboard_port=config.dashboard_port)


def with_absolute_engine_paths(engine: EngineOptions) -> EngineOptions:
    """Returns the options with absolute paths of adapters, draft models and heads. A hub id stays as it is."""
    draft = Path(engine.draft_model).expanduser()
    return replace(
        engine,
        host_kv_directory=_absolute(engine.host_kv_directory),
        lora=tuple(f"{one.name}={_absolute(one.path)}" for one in parse_sources(engine.lora)),
        lora_root=_absolute(engine.lora_root),
        draft_model=str(draft.resolve()) if engine.draft_model and draft.exists() else engine.draft_model,
        medusa=_absolute(engine.medusa),
        eagle=_absolute(engine.eagle),
    )


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve()) if path else ""


def worker_processes(
    deployment: Deployment,
    device: str,
    place: Locations,
    run: Path,
    share: float = USABLE_MEMORY_SHARE,
    numa_nodes: Sequence[int] = (),
) -> list[Process]:
    """Makes all prefill and decode workers of a deployment, each with GPUs, or its part of `share` of a GPU's memory.

    `run`: directory for the workers' status files and for the pages of busy workers. On a CPU, the workers of a role
    take turns on `numa_nodes`.
    """
    workers = [
        (service, name, numa_nodes[number % len(numa_nodes)] if numa_nodes else None)
        for service in deployment.of(*WORKERS)
        for number, name in enumerate(service.names)
    ]
    made = []
    widths = [max(1, service.gpus) for service, _, _ in workers]
    for (service, name, node), gpu in zip(workers, placements(device, widths, share=share), strict=True):
        page = str(run / ("busy" if node is None else f"busy-{node}"))
        here = replace(place, busy_page=page, device=gpu.device, gpu_share=gpu.share, numa_node=node)
        made.append(dataclasses.replace(process(service, name, here, run), settings=gpu.settings))
    return made


def process(service: Service, name: str, place: Locations, run: Path) -> Process:
    """Makes a process that is ready when its status file in `run` says so."""
    status = run / f"{name}.status"
    words = command(service, replace(place, status_file=str(status)))
    watch = watch_status_file(status)
    return Process(name, words, watch, status_file=status, beats=service.beats, grace=service.grace)


class Processes:
    """The processes of an instance. `model`: directory or hub id; `redis`: URL; `secret`: file."""

    def __init__(
        self, config: UpConfig, run: Path, model: str, redis: str, secret: Path, numa_nodes: Sequence[int] = ()
    ) -> None:
        self._config = config
        self._numa_nodes = numa_nodes
        self._run = run
        self._url = http_url(config.host, config.port, bool(config.tls_cert))
        self._deployment = host_deployment(config)
        self._place = Locations(redis=redis, model=model, secret_file=str(secret))

    def workers(self) -> list[Process]:
        return worker_processes(
            self._deployment, self._config.device, self._place, self._run, numa_nodes=self._numa_nodes
        )

    def gateways(self) -> list[Process]:
        """Makes the gateways, which are ready when they accept requests and have found workers."""
        (service,) = self._deployment.of("gateway")
        operator_keys_file = str(self._run / OPERATOR_KEYS_FILE) if self._config.api_keys else ""
        shared = new_epoch() if service.replicas > 1 else ""
        unloaded = str(self._run / UNLOADED_FILE) if self._config.idle_unload else ""
        place = replace(self._place, operator_keys_file=operator_keys_file, share_port=shared, unloaded_file=unloaded)
        serves = watch_http(f"{self._url}{service.probes.ready}")
        made = [process(service, name, place, self._run) for name in service.names]
        return [dataclasses.replace(each, watch=watch_both(each.watch, serves)) for each in made]

    def idle_watch(self, now: float) -> IdleWatch | None:
        """Makes the watch of `--idle-unload`, if that is asked for; `now`: local time, s."""
        if not self._config.idle_unload:
            return None
        workers = [process.name for process in self.workers()]
        files = [process.status_file for process in self.gateways() if process.status_file is not None]
        return IdleWatch(self._config.idle_unload, self._run / UNLOADED_FILE, workers, files, now)

    def dashboard(self) -> list[Process]:
        operator_key_file = str(self._run / OPERATOR_KEY_FILE) if self._config.api_keys else ""
        place = replace(self._place, gateway=self._url, operator_key_file=operator_key_file)
        return [process(service, service.role, place, self._run) for service in self._deployment.of("dashboard")]
