"""Describes a deployment as data: its services, what each is told and needs, and in which order they start and stop.

Three carry a description out, each in its way: the supervisor on one host (`host/processes.py`), Ray, and Kubernetes.
None of them decides what a service is told: `describe` does, once, and `command` writes it as a command line for the
place where the service runs.
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
from launcher.options import DEMO_MODEL, DEMO_NAME, DeploymentOptions

Role = Literal["redis", "prefill", "decode", "gateway", "dashboard"]
Kept = Literal["redis", "models", "cache"]
Told = WorkerConfig | GatewayConfig | DashboardConfig

WORKERS: tuple[Role, ...] = ("prefill", "decode")
STARTS: tuple[tuple[Role, ...], ...] = (("redis",), ("prefill", "decode", "gateway", "dashboard"))
"""The services that start together; each group begins when the one before it is ready."""
STOPS: tuple[tuple[Role, ...], ...] = (("gateway",), ("dashboard", "prefill", "decode"), ("redis",))
"""Their end: the gateway first, so that no request meets a missing worker, and Redis last: workers sign off there."""

LISTENS = ("gateways", "handoffs", "kv")
"""Who comes to the ports that a worker listens on, in the order in which it takes them from its range."""
CLOSE_SECONDS = 5.0
"""From the end of a drain until a service that has to be killed is: a gateway closes its connections in that time."""

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
"""Settings of every service's environment. They have to be there before Python starts, or they have no effect."""

HUB_TOKEN, HUB_ENDPOINT = "HF_TOKEN", "HF_ENDPOINT"
"""Variables of the user's environment by which services that download a model reach a gated one, or another hub."""

REDIS_WORK_BYTES = 512 << 20
"""What the deployment's own Redis may hold beside stored responses: jobs, records, figures, limits of keys."""


class Port(Struct, frozen=True):
    """Names a port that a service listens on; 0: the system chooses it, and the service announces it."""

    name: str
    number: int


class Probes(Struct, frozen=True):
    """Holds the paths by which a service's HTTP port is asked how it is; without paths its status file says it."""

    started: str = ""
    ready: str = ""
    alive: str = ""


class Service(Struct, frozen=True, kw_only=True):
    """Describes a service: `replicas` processes that are told the same."""

    role: Role
    replicas: int
    told: Told | None  # what its process is told, apart from where it runs; None: it is a Redis or Valkey server
    gpus: int = 0  # that each process takes at most; all of one process have to be on one host
    ports: tuple[Port, ...] = ()
    probes: Probes = Probes()
    keeps: tuple[Kept, ...] = ()  # what has to be there at its next start, or it is fetched and computed again
    beats: bool = False  # once it is ready, it renews its status file's time every second
    grace: float = CLOSE_SECONDS  # seconds from the request to stop until it may be killed
    max_memory: int = 0  # bytes that a Redis server holds: it refuses what would be more

    @property
    def names(self) -> list[str]:
        """Returns its processes' names: workers are numbered, others only where there are several."""
        if self.replicas == 1 and self.role not in WORKERS:
            return [self.role]
        return [f"{self.role}-{number}" for number in range(self.replicas)]

    @property
    def module(self) -> str:
        """Returns the Python module that runs it."""
        return module_of(self.role)


def module_of(role: Role) -> str:
    """Returns the Python module that runs a service; Redis has none."""
    return f"{role}_service" if role in WORKERS else role


class Deployment(Struct, frozen=True):
    """Holds the services of a deployment, in the order of their roles."""

    services: tuple[Service, ...]

    def of(self, *roles: Role) -> list[Service]:
        """Returns the services of some roles, as far as there are any."""
        return [service for service in self.services if service.role in roles]

    def stop_order(self) -> list[list[str]]:
        """Returns the names of all processes, in the groups in which they stop."""
        return [[name for service in self.of(*roles) for name in service.names] for roles in STOPS]


class Place(Struct, frozen=True, kw_only=True):
    """Says where one process of a service runs and finds things: what differs between hosts, nodes and containers."""

    redis: str  # URL
    model: str = ""  # its directory, where it is not what was told
    secret_file: str = ""
    status_file: str = ""
    worker: PlaceOptions = PlaceOptions()  # where a worker listens, and how others reach it
    device: str = ""  # of a worker; empty: the one that it was told
    gpu_share: float | None = None  # of its GPU's memory, where a worker does not have it alone
    busy_page: str = ""  # file that the workers of a host share
    share_port: str = ""  # name of the gateways of this host that have one port
    gateway: str = ""  # URL, for the dashboard
    own_keys: str = ""  # file with the deployment's own API key's record, for the gateway
    own_key: str = ""  # file with that key, for the dashboard
    python: tuple[str, ...] = (sys.executable, "-P")


def describe(options: DeploymentOptions, *, host: str, port: int, dashboard_port: int) -> Deployment:
    """Makes the description. `host`, `port`: where the gateway listens; `dashboard_port`: 0 for no dashboard.

    `options.prefill` has to be a number. Paths stay as they are given: they are meant where the services run.
    """
    assert options.prefill is not None, "whoever carries it out decides where nobody has"
    redis = Service(
        role="redis",
        replicas=1,
        told=None,
        ports=(Port("redis", 6379),),
        keeps=("redis",),
        max_memory=options.store_bytes + REDIS_WORK_BYTES,
    )
    services = [] if options.redis else [redis]
    if options.prefill:
        services.append(_worker(options, "prefill", options.prefill))
    services.append(_worker(options, "decode", options.decode))
    services.append(_gateway(options, host, port))
    if dashboard_port:
        services.append(_dashboard(options, host, dashboard_port))
    return Deployment(tuple(services))


def _worker(options: DeploymentOptions, role: Role, replicas: int) -> Service:
    told = WorkerConfig(
        engine=EngineConfig(model=options.model, device=options.device, **asdict(options.engine)),
        transfer=TransferConfig(**asdict(options.transfer)),
        drain_seconds=options.drain_seconds,
        log_level=options.log_level,
    )
    return Service(
        role=role,
        replicas=replicas,
        told=told,
        gpus=0 if options.device == "cpu" else 1,
        ports=tuple(Port(name, 0) for name in LISTENS[: listening_ports(role, told.transfer)]),
        keeps=("models", "cache"),
        beats=True,
        grace=told.drain_seconds + CLOSE_SECONDS,
    )


def _gateway(options: DeploymentOptions, host: str, port: int) -> Service:
    told = GatewayConfig(
        model=options.model,
        host=host,
        port=port,
        model_name=DEMO_NAME if options.model == DEMO_MODEL else "",
        max_model_len=options.engine.max_model_len,
        log_level=options.log_level,
        drain_seconds=options.drain_seconds,
        handoff=options.handoff,
        spelled_tokens=options.spelled_tokens,
        store_ttl=options.store_ttl,
        store_bytes=options.store_bytes,
        tool_parser=options.tool_parser,
        reasoning_parser=options.reasoning_parser,
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
        told=told,
        ports=(Port("http", port),),
        probes=Probes(started="/ping", ready="/ready", alive="/ping"),
        keeps=("models", "cache"),
        beats=True,
        grace=told.drain_seconds + CLOSE_SECONDS,
    )


def _dashboard(options: DeploymentOptions, host: str, port: int) -> Service:
    health = "/_stcore/health"
    told = DashboardConfig(
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
        told=told,
        ports=(Port("http", port),),
        probes=Probes(started=health, ready=health, alive=health),
    )


def hub_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what an environment says of the hub."""
    return {name: environment[name] for name in (HUB_TOKEN, HUB_ENDPOINT) if name in environment}


def placed(told: Told, place: Place) -> Told:
    """Returns what a process is told in one place."""
    told = replace(told, status_file=place.status_file)
    if isinstance(told, DashboardConfig):
        return replace(told, redis=place.redis, gateway=place.gateway or told.gateway, api_key_file=place.own_key)
    store = StoreConfig(redis=place.redis, secret_file=place.secret_file)
    if isinstance(told, GatewayConfig):
        keys = (*told.api_keys, place.own_keys) if place.own_keys else told.api_keys
        return replace(told, store=store, model=place.model or told.model, api_keys=keys, share_port=place.share_port)
    share = place.gpu_share or told.engine.gpu_memory_utilization
    engine = replace(
        told.engine,
        model=place.model or told.engine.model,
        device=place.device or told.engine.device,
        gpu_memory_utilization=share,
    )
    return replace(told, store=store, engine=engine, place=place.worker, busy_page=place.busy_page)


def command(service: Service, place: Place) -> tuple[str, ...]:
    """Writes the command line of one process of a service."""
    assert service.told is not None, "a Redis or Valkey server is started by whoever has one"
    return (*place.python, "-m", service.module, *words(placed(service.told, place)))
