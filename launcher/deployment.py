"""Describes a deployment as data: its services, their settings and needs, and the order of start and stop.

Four targets render a description: the supervisor on one host (`host/processes.py`), Compose, Ray and Kubernetes. No
target decides settings: `describe` does, once, and `command` writes them as a command line for the place of a service.
"""

import sys
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from infra.cli import words
from infra.config.dashboard import DashboardConfig
from infra.config.engine import EngineConfig
from infra.config.gateway import GatewayConfig
from infra.config.place import PlaceOptions
from infra.config.store import StoreConfig
from infra.config.transfer import TransferConfig
from infra.config.worker import WorkerConfig
from infra.network.ports import listening_ports
from launcher.options import DEMO_MODEL, DEMO_NAME, DeploymentOptions, WorkersOptions

Role = Literal["redis", "prefill", "decode", "gateway", "dashboard"]
Volume = Literal["redis", "models", "cache"]
ServiceConfig = WorkerConfig | GatewayConfig | DashboardConfig

WORKERS: tuple[Role, ...] = ("prefill", "decode")
START_ORDER: tuple[tuple[Role, ...], ...] = (("redis",), ("prefill", "decode", "gateway", "dashboard"))
"""Services of a group start together, as soon as all services of the group before are ready."""
STOP_ORDER: tuple[tuple[Role, ...], ...] = (("gateway",), ("dashboard", "prefill", "decode"), ("redis",))
"""The gateway stops first, so that no request meets a missing worker; Redis last, where workers sign off."""

WORKER_PORT_NAMES = ("gateways", "handoffs", "kv")
"""Names of the ports that a worker listens on, in the order in which it takes them from `--ports`."""
CLOSE_S = 5.0
"""Seconds from the end of a drain until SIGKILL, in which a gateway closes its connections."""

SERVICE_ENVIRONMENT = {
    # libgomp's threads spin between parallel regions, and keep the core from other processes. A spin takes 10 to 45 ns,
    # by processor, so all of them take at least 0.1 ms: longer than the serial part between two operators. With 2,000
    # spins, threads slept within each layer, and a decode step of 32 sequences took 8% longer.
    "GOMP_SPINCOUNT": "10000",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # Otherwise Streamlit asks for an e-mail address at its first start.
    "STREAMLIT_SERVER_HEADLESS": "true",
    "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
}
"""Environment of every service. The variables must be set before Python starts, or they have no effect."""

HUB_TOKEN, HUB_ENDPOINT = "HF_TOKEN", "HF_ENDPOINT"
"""The user's environment variables for gated models, and for another hub than huggingface.co."""

REDIS_WORK_BYTES = 512 << 20
"""Memory of the deployment's own Redis for jobs, records, metrics and key limits, beside stored responses."""


class Port(Struct, frozen=True):
    """A port that a service listens on; 0: the system chooses the port, and the service advertises it."""

    name: str
    number: int


class Probes(Struct, frozen=True):
    """HTTP paths of a service's probes; a service without paths has a status file."""

    started: str = ""
    ready: str = ""
    alive: str = ""


class Service(Struct, frozen=True, kw_only=True):
    """A service: `replicas` processes with the same settings."""

    role: Role
    replicas: int
    settings: ServiceConfig | None  # without the place where a process runs; None: a Redis or Valkey server
    gpus: int = 0  # per process, at most, all of them on one host: one for each rank of a worker
    ports: tuple[Port, ...] = ()
    probes: Probes = Probes()
    keeps: tuple[Volume, ...] = ()  # data that outlives a process, which fetches or computes it otherwise
    beats: bool = False  # whether a ready process touches its status file every second
    grace: float = CLOSE_S  # seconds from SIGTERM until SIGKILL
    max_memory: int = 0  # bytes, of a Redis server, which refuses writes beyond them

    @property
    def names(self) -> list[str]:
        """Names of the processes: workers are numbered, other services only if there are several processes."""
        if self.replicas == 1 and self.role not in WORKERS:
            return [self.role]
        return [f"{self.role}-{number}" for number in range(self.replicas)]

    @property
    def module(self) -> str:
        return module_of(self.role)


def module_of(role: Role) -> str:
    return f"{role}_service" if role in WORKERS else role


class Deployment(Struct, frozen=True):
    """The services of a deployment, in the order of their roles."""

    services: tuple[Service, ...]

    def of(self, *roles: Role) -> list[Service]:
        return [service for service in self.services if service.role in roles]

    def stop_order(self) -> list[list[str]]:
        """Returns the names of all processes, in the groups in which they stop."""
        return [[name for service in self.of(*roles) for name in service.names] for roles in STOP_ORDER]


class Locations(Struct, frozen=True, kw_only=True):
    """Paths, addresses and devices of one process: what differs between hosts, nodes and containers."""

    redis: str  # URL
    model: str = ""  # the model's directory; empty: as in the settings
    secret_file: str = ""
    status_file: str = ""
    worker: PlaceOptions = PlaceOptions()  # a worker's bind and advertised addresses
    device: str = ""  # of a worker; empty: as in the settings
    gpu_share: float | None = None  # share of the GPU's memory, for a worker beside others
    busy_page: str = ""  # file that shows which workers compute, of those that share cores
    numa_node: int | None = None  # of a worker that keeps to one node of a host
    share_port: str = ""  # name that gateways of this host with one port share
    gateway: str = ""  # URL, for the dashboard
    unloaded_file: str = ""  # tells gateways that an idle model is unloaded
    operator_keys_file: str = ""  # file with the record of the deployment's operator key, for gateways
    operator_key_file: str = ""  # file with the deployment's operator key, for the dashboard
    python: tuple[str, ...] = (sys.executable, "-P")


def describe(options: DeploymentOptions, *, host: str, port: int, dashboard_port: int) -> Deployment:
    """Describes a deployment. `host`, `port`: bind address of the gateway; `dashboard_port`: 0 for no dashboard.

    The numbers of workers must be decided. Paths stay as given: they are valid where the services run.
    """
    redis = Service(
        role="redis",
        replicas=1,
        settings=None,
        ports=(Port("redis", 6379),),
        keeps=("redis",),
        max_memory=options.store_bytes + REDIS_WORK_BYTES,
    )
    services = [] if options.redis else [redis]
    services += worker_services(options)
    services.append(_gateway(options, host, port))
    if dashboard_port:
        services.append(_dashboard(options, host, dashboard_port))
    return Deployment(tuple(services))


def worker_services(options: WorkersOptions) -> list[Service]:
    """Describes the workers of a deployment, whose numbers must be decided."""
    assert options.prefill is not None and options.decode is not None, "the target decides the numbers of workers"
    prefill = [_worker(options, "prefill", options.prefill)] if options.prefill else []
    return [*prefill, _worker(options, "decode", options.decode)]


def _worker(options: WorkersOptions, role: Role, replicas: int) -> Service:
    settings = WorkerConfig(
        engine=EngineConfig(model=options.model, device=options.device, **asdict(options.engine)),
        transfer=TransferConfig(**asdict(options.transfer)),
        drain_seconds=options.drain_seconds,
        log_level=options.log_level,
        log_format=options.log_format,
    )
    return Service(
        role=role,
        replicas=replicas,
        settings=settings,
        gpus=0 if options.device == "cpu" else options.engine.width("prefill" if role == "prefill" else "decode"),
        ports=tuple(Port(name, 0) for name in WORKER_PORT_NAMES[: listening_ports(role, settings.transfer)]),
        keeps=("models", "cache"),
        beats=True,
        grace=settings.drain_seconds + CLOSE_S,
    )


def _gateway(options: DeploymentOptions, host: str, port: int) -> Service:
    settings = GatewayConfig(
        model=options.model,
        host=host,
        port=port,
        served_model_name=options.served_model_name or (DEMO_NAME if options.model == DEMO_MODEL else ""),
        max_model_len=options.engine.max_model_len,
        log_level=options.log_level,
        log_format=options.log_format,
        access_log=options.access_log,
        trace_endpoint=options.trace_endpoint,
        trace_sample=options.trace_sample,
        drain_seconds=options.drain_seconds,
        handoff=options.handoff,
        spelled_tokens=options.spelled_tokens,
        store_ttl=options.store_ttl,
        store_bytes=options.store_bytes,
        tool_parser=options.tool_parser,
        reasoning_parser=options.reasoning_parser,
        unknown_fields=options.unknown_fields,
        lora_root=options.engine.lora_root if options.engine.allow_lora_loading else "",
        allow_lora_loading=options.engine.allow_lora_loading,
        api_keys=options.api_keys,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        slo=options.slo,
    )
    return Service(
        role="gateway",
        replicas=options.gateways,
        settings=settings,
        ports=(Port("http", port),),
        probes=Probes(started="/ping", ready="/ready", alive="/ping"),
        keeps=("models", "cache"),
        beats=True,
        grace=settings.drain_seconds + CLOSE_S,
    )


def _dashboard(options: DeploymentOptions, host: str, port: int) -> Service:
    health = "/_stcore/health"
    settings = DashboardConfig(
        host=host,
        port=port,
        gateway_cert=options.tls_cert,
        api_keys=options.api_keys,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
    )
    return Service(
        role="dashboard",
        replicas=1,
        settings=settings,
        ports=(Port("http", port),),
        probes=Probes(started=health, ready=health, alive=health),
    )


def hub_settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in (HUB_TOKEN, HUB_ENDPOINT) if name in environment}


def placed(settings: ServiceConfig, place: Locations) -> ServiceConfig:
    """Returns the settings of a process with its paths, addresses and device."""
    settings = replace(settings, status_file=place.status_file)
    if isinstance(settings, DashboardConfig):
        return replace(
            settings, redis=place.redis, gateway=place.gateway or settings.gateway, api_key_file=place.operator_key_file
        )
    store = StoreConfig(redis=place.redis, secret_file=place.secret_file)
    if isinstance(settings, GatewayConfig):
        keys = (*settings.api_keys, place.operator_keys_file) if place.operator_keys_file else settings.api_keys
        return replace(
            settings,
            store=store,
            model=place.model or settings.model,
            api_keys=keys,
            share_port=place.share_port,
            unloaded_file=place.unloaded_file,
        )
    share = place.gpu_share or settings.engine.gpu_memory_utilization
    engine = replace(
        settings.engine,
        model=place.model or settings.engine.model,
        device=place.device or settings.engine.device,
        gpu_memory_utilization=share,
    )
    return replace(
        settings,
        store=store,
        engine=engine,
        place=place.worker,
        busy_page=place.busy_page,
        numa_node=place.numa_node,
    )


def command(service: Service, place: Locations) -> tuple[str, ...]:
    assert service.settings is not None, "the target starts Redis"
    return (*place.python, "-m", service.module, *words(placed(service.settings, place)))
