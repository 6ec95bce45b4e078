"""Defines the options of `baton up`, `status` and `chat`; `infra.cli` turns these structs into command-line options."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from contracts.kinds import (
    AccessLog,
    Address,
    APIKeys,
    Count,
    DirectoryPath,
    FilePath,
    HandoffRule,
    LogFormat,
    LogLevel,
    ModelSource,
    Port,
    Positive,
    ReasoningParser,
    Seconds,
    ServedNames,
    Slo,
    SpelledTokens,
    StatusPath,
    StoreBytes,
    StoreTTL,
    TLSCert,
    TLSKey,
    ToolParser,
    TraceEndpoint,
    TraceSample,
    UnknownFieldsRule,
    URLText,
)
from infra.config.engine import EngineOptions
from infra.config.place import PlaceOptions
from infra.config.store import StoreConfig
from infra.config.transfer import TransferOptions

ROOT = Path(__file__).resolve().parent.parent
MONITORING_DIRECTORY = ROOT / "docs" / "monitoring"  # board, alert rules, and settings of their servers
DEMO_MODEL = str(ROOT / "demo_model" / "weights")
DEMO_NAME = "baton-demo"  # model name for clients


SilentSeconds = Annotated[
    float,
    Meta(
        extra={"metavar": "SECONDS"},
        ge=0,
        description="seconds after which a service that is stopped or silent is killed and started again; 0: never",
    ),
]


class WorkersOptions(Struct, frozen=True, kw_only=True):
    """Model and workers, on every target."""

    model: Annotated[
        ModelSource,
        Meta(description="directory, GGUF file or hub id such as Qwen/Qwen3-0.6B; default: the demo model"),
    ] = DEMO_MODEL
    prefill: Annotated[
        Count | None,
        Meta(
            description="number of prefill workers; 0: decode workers serve whole requests, which is the default on a "
            "host with one GPU; on several GPUs the default is one worker on each; elsewhere it is 1"
        ),
    ] = None  # each target decides
    decode: Annotated[
        Positive | None, Meta(description="number of decode workers; default: one worker on each GPU; elsewhere 1")
    ] = None  # each target decides
    device: Annotated[
        Literal["cpu", "cuda", "auto"], Meta(description="cpu, cuda or auto; cuda spreads the workers over the GPUs")
    ] = "auto"
    drain_seconds: Annotated[
        Seconds, Meta(description="seconds that what is in progress gets when a gateway or a worker is told to stop")
    ] = 10.0
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    engine: EngineOptions = EngineOptions()  # of every worker
    transfer: TransferOptions = TransferOptions()  # of every worker


class HostWorkersConfig(WorkersOptions, frozen=True, kw_only=True):
    """Runs the workers of this host for a deployment, one on each GPU, and starts a worker again that dies.

    Example: ./baton run workers --model Qwen/Qwen3-0.6B --redis redis://10.0.0.5:6379 --secret-file secret
    """

    store: StoreConfig = StoreConfig()
    place: PlaceOptions = PlaceOptions()  # of every worker
    status_file: StatusPath = ""
    silent_seconds: SilentSeconds = 15.0
    gpu_memory_utilization: Annotated[
        float,
        Meta(
            extra={"metavar": "SHARE"},
            gt=0,
            le=1,
            description="share of each GPU's memory, for all workers on it together",
        ),
    ] = 0.9


class DeploymentOptions(WorkersOptions, frozen=True, kw_only=True):
    """Gateways and Redis, on every target."""

    gateways: Annotated[
        int, Meta(ge=1, le=64, description="gateway processes on that port; one serves one core's worth of tokens")
    ] = 1
    redis: Annotated[
        URLText, Meta(description="URL of a Redis or Valkey server to use; empty: one is started for this instance")
    ] = ""
    secret_file: Annotated[
        FilePath, Meta(description="file with the secret that seals prompts and KV; empty: a new one for this instance")
    ] = ""
    api_keys: APIKeys = ()
    tls_cert: TLSCert = ""
    tls_key: TLSKey = ""
    slo: Slo = ""
    served_model_name: ServedNames = ""
    access_log: AccessLog = True
    trace_endpoint: TraceEndpoint = ""
    trace_sample: TraceSample = 0.01
    handoff: HandoffRule = "auto"
    spelled_tokens: SpelledTokens = "text"
    store_ttl: StoreTTL = 86400.0
    store_bytes: StoreBytes = 256 << 20
    tool_parser: ToolParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    unknown_fields: UnknownFieldsRule = "refuse"


ScalingBounds = Annotated[
    str,
    Meta(
        extra={"metavar": "BOUNDS"},
        description="bounds within which the numbers of workers, on Ray or simulated, follow the load: "
        "prefill=1:4,decode=1:8, and perhaps up=30s,down=300s, seconds after a change before one is added or removed; "
        "empty: the numbers stay",
    ),
]


class RayPlace(Struct, frozen=True, kw_only=True):
    """Place of a deployment on a Ray cluster."""

    ray_address: Annotated[
        str,
        Meta(
            extra={"metavar": "HOST:PORT"},
            description="HOST:PORT of a Ray cluster's head node; auto: the cluster that this host is a node of",
        ),
    ] = "auto"
    ray_namespace: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME"},
            pattern=r"^[A-Za-z0-9_.-]{1,64}$",
            description="namespace of Ray's for the deployment's actors: up to 64 letters, digits, dots, dashes and "
            "underscores",
        ),
    ] = "baton"


class RayOptions(RayPlace, frozen=True, kw_only=True):
    """Deployment on a Ray cluster."""

    detach: Annotated[
        bool, Meta(description="on Ray: return when everything is ready, and leave it running until ./baton down")
    ] = False
    worker_cpus: Annotated[
        float,
        Meta(extra={"metavar": "N"}, ge=0, description="CPUs that each worker takes of its Ray node, beside GPUs"),
    ] = 1.0
    redis_node: Annotated[
        Address, Meta(description="address of the Ray node that Redis runs on, without --redis; empty: this host")
    ] = ""
    redis_directory: Annotated[
        DirectoryPath,
        Meta(
            description="directory on that node for Redis's append-only files; empty: one that goes with the deployment"
        ),
    ] = ""
    autoscale: ScalingBounds = ""


Where = Annotated[
    Literal["host", "ray"],
    Meta(description="where services run; host: everything here; ray: spread over the nodes of a Ray cluster"),
]


IdleMinutes = Annotated[
    float,
    Meta(
        extra={"metavar": "MINUTES"},
        ge=0,
        description="idle minutes after which the model is unloaded: its workers end, and the next request starts them "
        "and waits; 0: never",
    ),
]
LocalURL = Annotated[URLText, Meta(description="URL of an instance on this host, if several run")]


class StatusConfig(RayPlace, frozen=True, kw_only=True):
    """Shows the instances of this user on this host, or the deployment on a Ray cluster.

    Example: ./baton status --ray-address 10.0.0.1:6379
    """

    on: Where = "host"  # --ray-address and --ray-namespace imply `ray`


class DownConfig(RayPlace, frozen=True, kw_only=True):
    """Stops this host's running instance, as Ctrl-C does, or the deployment on a Ray cluster; requests drain first.

    Example: ./baton down --ray-namespace baton
    """

    on: Where = "host"  # --ray-address and --ray-namespace imply `ray`
    url: LocalURL = ""


class UpOptions(DeploymentOptions, frozen=True, kw_only=True):
    """Addresses and log of the instance."""

    on: Where = "host"
    host: Annotated[Address, Meta(description="address that the endpoint and the dashboard listen on")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="port of the endpoint; 0: chosen by the system")] = 8000
    dashboard_port: Annotated[Port, Meta(description="port of the dashboard; 0: no dashboard")] = 8501
    log_bytes: Annotated[
        int,
        Meta(ge=1 << 16, extra={"unit": "bytes"}, description="size at which a file of this instance's log is full"),
    ] = 16 << 20
    log_files: Annotated[
        int,
        Meta(ge=1, le=100, description="files of --log-bytes that the log keeps; the oldest goes for a new file"),
    ] = 4
    silent_seconds: SilentSeconds = 15.0
    idle_unload: IdleMinutes = 0.0
    ray: RayOptions = RayOptions()


class UpConfig(UpOptions, frozen=True, kw_only=True):
    """Starts everything on this host, or on a Ray cluster: Redis, prefill and decode workers, gateway and dashboard.

    Example: ./baton up --model Qwen/Qwen3-0.6B --prefill 2 --decode 1 --port 18080
    """

    COMMON_OPTIONS: ClassVar = (
        *("model", "host", "port", "dashboard_port", "device", "prefill", "decode", "max_model_len", "dtype"),
        *(
            "quantization",
            "kv_memory",
            "kv_dtype",
            "speculation",
            "lora",
            "served_model_name",
            "api_keys",
            "slo",
            "redis",
            "on",
        ),
    )


class ShownConfig(UpConfig, frozen=True, kw_only=True):
    """Prints the settings that `./baton up` takes with the same options, and their sources, as a file for --config.

    Example: ./baton config --config baton.toml --port 18080
    """


class UnitConfig(UpConfig, frozen=True, kw_only=True):
    """Prints a systemd unit that runs `./baton up` with the same options, in this directory.

    Example: ./baton unit --config baton.toml > ~/.config/systemd/user/baton.service
    """


EndpointURL = Annotated[
    URLText, Meta(description="endpoint, such as http://127.0.0.1:8000; empty: the running instance")
]
EndpointKeyFile = Annotated[
    FilePath, Meta(description="file with an API key; empty: the key in BATON_API_KEY, or the running instance's own")
]
EndpointCert = Annotated[
    FilePath, Meta(description="file with the certificate to trust at an https URL; empty: the system's certificates")
]


class ChatConfig(Struct, frozen=True, kw_only=True):
    """Talks to a running instance in the terminal; without one it offers to start one.

    Example: ./baton chat --url http://127.0.0.1:18080
    """

    url: EndpointURL = ""
    api_key_file: EndpointKeyFile = ""
    cert: EndpointCert = ""
    alone: Annotated[
        ModelSource,
        Meta(
            description="model to start for the time of the chat, with one worker and no dashboard; empty: the running "
            "instance"
        ),
    ] = ""
    idle_unload: IdleMinutes = 0.0  # with --alone
    max_tokens: Annotated[Positive, Meta(description="longest answer in tokens")] = 512
    temperature: Annotated[float, Meta(ge=0, le=2, description="0: always the likeliest token")] = 0.7
