"""Makes the processes of a deployment on this host."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from contracts.adapters import parse_sources
from contracts.ids import new_epoch
from infra.config.engine import EngineOptions
from infra.config.gateway import GatewayConfig
from infra.network.listening import http_url
from launcher.deployment import SERVICE_ENVIRONMENT, WORKERS, Deployment, Locations, Service, command, describe
from launcher.host.gpus import placements
from launcher.host.process import Process, watch_both, watch_http, watch_status_file
from launcher.options import UpConfig

OWN_KEYS, OWN_KEY = "api-keys.json", "api-key"
"""Files of the run directory with the instance's operator key, which its dashboard and `baton chat` use."""


def environment(inherited: Mapping[str, str], root: Path, run: Path) -> dict[str, str]:
    """Returns the environment of children: our defaults, the user's variables, and `root` on Python's path.

    Temporary files go into the run directory, and are removed with it: torch and killed processes leave files.
    """
    return {**SERVICE_ENVIRONMENT, **inherited, "PYTHONPATH": str(root), "TMPDIR": str(run)}


def described(config: UpConfig) -> Deployment:
    config = replace(config, engine=_with_absolute_paths(config.engine))
    return describe(config, host=config.host, port=config.port, dashboard_port=config.dashboard_port)


def _with_absolute_paths(engine: EngineOptions) -> EngineOptions:
    def whole(path: str) -> str:
        return str(Path(path).expanduser().resolve()) if path else ""

    draft = Path(engine.draft_model).expanduser()
    return replace(
        engine,
        host_kv_directory=whole(engine.host_kv_directory),
        lora=tuple(f"{one.name}={whole(one.path)}" for one in parse_sources(engine.lora)),
        lora_root=whole(engine.lora_root),
        draft_model=str(draft.resolve()) if engine.draft_model and draft.exists() else engine.draft_model,
        medusa=whole(engine.medusa),
        eagle=whole(engine.eagle),
    )


class Processes:
    """The processes of an instance. `model`: directory or hub id; `redis`: URL; `secret`: file."""

    def __init__(self, config: UpConfig, run: Path, model: str, redis: str, secret: Path) -> None:
        self._config = config
        self._run = run
        self._url = http_url(config.host, config.port, bool(config.tls_cert))
        self._deployment = described(config)
        self._place = Locations(redis=redis, model=model, secret_file=str(secret))

    def workers(self) -> list[Process]:
        """Makes all prefill and decode workers, each with a GPU or a share of a GPU."""
        busy = replace(self._place, busy_page=str(self._run / "busy"))
        workers = [(service, name) for service in self._deployment.of(*WORKERS) for name in service.names]
        made = []
        for (service, name), gpu in zip(workers, placements(self._config.device, len(workers)), strict=True):
            place = replace(busy, device=gpu.device, gpu_share=gpu.share)
            made.append(dataclasses.replace(self._process(service, name, place), settings=gpu.settings))
        return made

    def gateways(self) -> list[Process]:
        """Makes the gateways, which are ready when they accept requests and have found workers."""
        (service,) = self._deployment.of("gateway")
        own_keys = str(self._run / OWN_KEYS) if self._config.api_keys else ""
        place = replace(self._place, own_keys=own_keys, share_port=new_epoch() if service.replicas > 1 else "")
        return [self._process(service, name, place) for name in service.names]

    def dashboard(self) -> list[Process]:
        own_key = str(self._run / OWN_KEY) if self._config.api_keys else ""
        place = replace(self._place, gateway=self._url, own_key=own_key)
        return [self._process(service, service.role, place) for service in self._deployment.of("dashboard")]

    def _process(self, service: Service, name: str, place: Locations) -> Process:
        status = self._run / f"{name}.status"
        watch = watch_status_file(status)
        if isinstance(service.settings, GatewayConfig):
            watch = watch_both(watch, watch_http(f"{self._url}{service.probes.ready}", "waiting for the workers"))
        words = command(service, replace(place, status_file=str(status)))
        return Process(name, words, watch, status_file=status, beats=service.beats, grace=service.grace)
