"""Writes the services of one instance as command lines, and says in which order they stop."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from core.adapters import parse_sources
from core.cli import option
from core.config import EngineOptions
from core.ids import new_epoch
from core.network.listening import http_url
from launcher.host.gpus import placements
from launcher.host.service import Service, watch_both, watch_http, watch_status_file
from launcher.options import DEMO_MODEL, DEMO_NAME, UpConfig

# Set before Python starts, or they have no effect.
ENVIRONMENT = {
    # libgomp spins between parallel regions, and steals the time of whoever else wants the core. A spin is 10 to 45 ns,
    # by processor: 0.1 ms and more in all, longer than what one thread does alone between two operators. With 2,000,
    # threads slept within each layer, and a decode step of 32 sequences took 8% longer.
    "GOMP_SPINCOUNT": "10000",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # Otherwise its first start asks for an e-mail address.
    "STREAMLIT_SERVER_HEADLESS": "true",
    "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
}


OWN_KEYS, OWN_KEY = "api-keys.json", "api-key"
"""Files of the run directory, where keys are needed: the instance's own, for its dashboard and its user's chats."""


def environment(inherited: Mapping[str, str], root: Path, run: Path) -> dict[str, str]:
    """Returns what children see: our settings where the user has not decided otherwise, and the packages of `root`.

    Their temporary files go into the run directory and with it: torch leaves some, and a killed process all of its.
    """
    return {**ENVIRONMENT, **inherited, "PYTHONPATH": str(root), "TMPDIR": str(run)}


def worker_names(config: UpConfig) -> list[str]:
    """Returns the workers' names: `prefill-0` and so on, then `decode-0` and so on."""
    assert config.prefill is not None, "`up.check` decides it where nobody has"
    return [f"{role}-{i}" for role, n in (("prefill", config.prefill), ("decode", config.decode)) for i in range(n)]


def gateway_names(config: UpConfig) -> list[str]:
    """Returns the gateways' names: `gateway`, or `gateway-0` and so on where several share the port."""
    return ["gateway"] if config.gateways == 1 else [f"gateway-{number}" for number in range(config.gateways)]


def stop_order(config: UpConfig) -> list[list[str]]:
    """Puts the gateway first, so that no request meets a missing worker, and Redis last: workers sign off there."""
    return [gateway_names(config), ["dashboard", *worker_names(config)], ["redis"]]


def chosen(options: Struct) -> list[str]:
    """Returns the command-line options that say the same as `options`."""
    words = []
    for name, value in asdict(options).items():
        for each in value if isinstance(value, tuple) else (value,):
            words += [option(name), str(each)]
    return words


def _placed(engine: EngineOptions) -> EngineOptions:
    """Returns the options with whole paths, for workers that run in another directory."""

    def whole(path: str) -> str:
        return str(Path(path).expanduser().resolve()) if path else ""

    draft = Path(engine.draft_model).expanduser()
    return replace(
        engine,
        host_kv_directory=whole(engine.host_kv_directory),
        lora=tuple(f"{one.name}={whole(one.path)}" for one in parse_sources(engine.lora)),
        lora_root=whole(engine.lora_root),
        draft_model=str(draft.resolve()) if engine.draft_model and draft.exists() else engine.draft_model,  # or an id
        medusa=whole(engine.medusa),
        eagle=whole(engine.eagle),
    )


class Deployment:
    """Makes the services of an instance from its options; `model`, `redis`, `secret` are as the services take them."""

    def __init__(self, config: UpConfig, run: Path, model: str, redis: str, secret: Path) -> None:
        self._config = config
        self._run = run
        self._shared = ["--redis", redis]
        self._url = http_url(config.host, config.port, bool(config.tls_cert))
        self._serving = ["--model", model, "--secret-file", str(secret), "--log-level", config.log_level]

    def workers(self) -> list[Service]:
        """Makes all prefill and decode workers."""
        config = self._config
        engine = _placed(config.engine)
        options = [*chosen(engine), *chosen(config.transfer), "--busy-page", str(self._run / "busy")]
        names = worker_names(config)
        services = []
        for name, place in zip(names, placements(config.device, len(names)), strict=True):
            placed = ["--device", place.device]
            if place.share is not None:
                placed += ["--gpu-memory-utilization", str(place.share)]
            role = name.partition("-")[0]
            service = self._service(name, f"{role}_service", *self._serving, *options, *placed)
            services.append(dataclasses.replace(service, settings=place.settings, beats=True))
        return services

    def gateways(self) -> list[Service]:
        """Makes the gateways. One is ready when it accepts requests and knows a worker that can serve them."""
        names = gateway_names(self._config)
        shared = ["--share-port", new_epoch()] if len(names) > 1 else []
        return [self._gateway(name, *shared) for name in names]

    def _gateway(self, name: str, *shared: str) -> Service:
        config = self._config
        options = ["--host", config.host, "--port", str(config.port)]
        options += ["--max-model-len", str(config.engine.max_model_len), "--spelled-tokens", config.spelled_tokens]
        options += ["--tool-parser", config.tool_parser, "--reasoning-parser", config.reasoning_parser]
        options += ["--store-ttl", str(config.store_ttl), "--store-bytes", str(config.store_bytes)]
        options += [*self._tls(), "--slo", config.slo, "--handoff", config.handoff]
        if config.api_keys:
            options += self._keys(*config.api_keys, str(self._run / OWN_KEYS))
        if config.model == DEMO_MODEL:
            options += ["--model-name", DEMO_NAME]
        if config.engine.allow_lora_loading:
            root = str(Path(config.engine.lora_root).expanduser().resolve())
            options += ["--allow-lora-loading", "--lora-root", root]
        service = self._service(name, "gateway", *self._serving, *options, *shared)
        assert service.status_file is not None
        accepts = watch_http(f"{self._url}/ready", "waiting for the workers")
        watch = watch_both(watch_status_file(service.status_file), accepts)
        return dataclasses.replace(service, watch=watch, beats=True)

    def dashboard(self) -> Service:
        """Makes the dashboard. It is ready when Streamlit serves its page."""
        config = self._config
        options = ["--host", config.host, "--port", str(config.dashboard_port)]
        options += ["--gateway", self._url, *self._tls()]
        if config.tls_cert:
            options += ["--gateway-cert", config.tls_cert]
        if config.api_keys:
            options += [*self._keys(*config.api_keys), "--api-key-file", str(self._run / OWN_KEY)]
        return self._service("dashboard", "dashboard", *options)

    def _tls(self) -> list[str]:
        return ["--tls-cert", self._config.tls_cert, "--tls-key", self._config.tls_key]

    def _keys(self, *paths: str) -> list[str]:
        return [word for path in paths for word in ("--api-keys", path)]

    def _service(self, name: str, module: str, *options: str) -> Service:
        status = self._run / f"{name}.status"
        command = (sys.executable, "-P", "-m", module, *self._shared, *options, "--status-file", str(status))
        return Service(name, command, watch_status_file(status), status_file=status)
