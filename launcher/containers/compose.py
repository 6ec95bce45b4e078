"""Writes compose.yaml from the description of a deployment (`baton compose`): one host, in containers."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from contracts.errors import ConfigError
from infra.cli import parse, spell
from infra.config.place import PlaceOptions
from infra.config.store import StoreConfig
from infra.option_fields import option
from launcher.containers.container import (
    DATA_DIRECTORIES,
    DEMO_WEIGHTS,
    HOME_DIRECTORY,
    IMAGE,
    LOG_LIMITS,
    MODELS_DIRECTORY,
    PYTHON_COMMAND,
    RANKS_SHARED_MEMORY,
    REDIS_IMAGE,
    REDIS_PING,
    is_ready,
    redis_command,
)
from launcher.containers.monitoring_containers import VOLUMES, monitoring
from launcher.containers.yaml_text import Value, as_yaml
from launcher.deployment import (
    HUB_ENDPOINT,
    HUB_TOKEN,
    WORKERS,
    Deployment,
    Locations,
    Service,
    describe,
    placed,
)
from launcher.options import DeploymentOptions, HostWorkersConfig
from launcher.refusal import refusing

COMPOSE_HEADER = """\
# Baton on one host in containers: docker compose up --build
# `./baton compose > compose.yaml` has written this file; `./baton compose --device cpu` writes one for a host without a
# GPU, whose image is built with BATON_TORCH_INDEX=https://download.pytorch.org/whl/cpu.
#
# The service `workers` has workers fill the NVIDIA GPUs of the host, in one container, where they pass KV to each other
# in shared memory. Its log says how many prefill and decode workers these are. BATON_PREFILL and BATON_DECODE set
# their numbers; `--scale workers=2`, which would start them twice on the same GPUs, is refused.
#
#   BATON_PREFILL, BATON_DECODE   numbers of prefill and decode workers; without them the launcher decides
#   BATON_TENSOR_PARALLEL         GPUs of each worker, among which it divides the model: 1, 2, 4 or 8; 0: as many as it
#                                 needs. BATON_PREFILL_TP and BATON_DECODE_TP give the workers of a role another number
#   CUDA_VISIBLE_DEVICES          the GPUs to use, such as 0,2; `./baton compose --gpus 0,2` hides the others altogether
#   BATON_MODEL=Qwen/Qwen3-0.6B   the model; a hub id, or a directory below ./models, which is mounted at /models
#   BATON_SERVED_MODEL_NAME=qwen,gpt-4o   names by which clients call the model
#   BATON_SECRET_FILE=./secret    the deployment's secret: `openssl rand -hex 32 > secret` makes one
#   HF_TOKEN, HF_ENDPOINT         the hub's token, for a model that needs one, and another hub than huggingface.co
#   BATON_PORT, BATON_DASHBOARD_PORT, BATON_HOST   where the endpoint and the dashboard listen on the host
#
#   BATON_API_KEYS=/keys/api-keys.json   a file of API keys in ./keys, mounted at /keys; without it clients need no key
#   BATON_DASHBOARD_KEY=/keys/dashboard  a file there with an operator's key, which the dashboard's Try it box asks with
#   BATON_TLS_CERT, BATON_TLS_KEY        a certificate and its key there, for HTTPS, with BATON_SCHEME=https
#   BATON_UID                     the user that the services run as, who has to be able to read the secret
#   BATON_GPU_SHARE               share of each GPU's memory that the workers on it take together
#   BATON_QUANTIZATION            how workers quantize 16-bit and 32-bit weights: none, int8, int4 or fp8
#   BATON_GATEWAYS                gateway processes on the one port; one serves a core's worth of tokens
#   BATON_HANDOFF                 auto: decode workers compute prompts themselves where that is faster; always: never
#   BATON_KV_DTYPE                number format of KV in their pools: auto (the model's), fp8 or int8
#   BATON_SLO                     default latency objective of requests, such as ttft=2s,tpot=100ms
#   BATON_STEP_MS                 milliseconds that a step with decodes should take
#   BATON_SPECULATION             proposer of draft tokens: none, ngram, draft, medusa, eagle or auto, with
#   BATON_DRAFT_MODEL, BATON_MEDUSA, BATON_EAGLE   the weights of the proposer, below /models
#
# `docker compose --profile monitoring up` also starts Prometheus with the alert rules (127.0.0.1:9090) and Grafana with
# the board (127.0.0.1:3000, user admin), from the files of docs/monitoring.
#
#   BATON_MONITORING_KEY=./keys/dashboard   a file with an operator's key, which Prometheus uses if clients need keys
#   BATON_GRAFANA_PASSWORD        the first password of Grafana's user admin
"""

FIELD_VARIABLES = {
    "prefill": "BATON_PREFILL",
    "decode": "BATON_DECODE",
    "tensor_parallel": "BATON_TENSOR_PARALLEL",
    "prefill_tp": "BATON_PREFILL_TP",
    "decode_tp": "BATON_DECODE_TP",
    "model": "BATON_MODEL",
    "gpu_memory_utilization": "BATON_GPU_SHARE",
    "quantization": "BATON_QUANTIZATION",
    "kv_dtype": "BATON_KV_DTYPE",
    "slo": "BATON_SLO",
    "step_ms": "BATON_STEP_MS",
    "speculation": "BATON_SPECULATION",
    "draft_model": "BATON_DRAFT_MODEL",
    "medusa": "BATON_MEDUSA",
    "eagle": "BATON_EAGLE",
    "gateways": "BATON_GATEWAYS",
    "handoff": "BATON_HANDOFF",
    "served_model_name": "BATON_SERVED_MODEL_NAME",
    "api_keys": "BATON_API_KEYS",
    "api_key_file": "BATON_DASHBOARD_KEY",
    "tls_cert": "BATON_TLS_CERT",
    "gateway_cert": "BATON_TLS_CERT",
    "tls_key": "BATON_TLS_KEY",
}
"""Field → environment variable of the user that sets it; compose.yaml always names these options."""

PORT_VARIABLES = {"gateway": "BATON_PORT", "dashboard": "BATON_DASHBOARD_PORT"}
SCHEME_VARIABLE = "${BATON_SCHEME:-http}"
START_MINUTES = {"workers": 10, "gateway": 2}
"""Minutes in which failed health checks do not count."""
ALL_GPUS = "all"
STOP_MARGIN_S = 5.0  # from the SIGKILL of the last worker to that of its supervisor
STATUS_FILE = "/tmp/status"
WRITABLE_DIRECTORIES = ("/tmp", HOME_DIRECTORY)
"""Directories of our containers that are lost with them. Beside them and the volumes no file can be written."""
STORE = StoreConfig(redis="redis://redis:6379", secret_file="/run/secrets/baton")


class ComposeConfig(Struct, frozen=True, kw_only=True):
    """Prints compose.yaml, which `docker compose up` takes.

    Example: ./baton compose --gpus 0,1 > compose.yaml
    """

    device: Annotated[
        Literal["cpu", "cuda"], Meta(description="cuda: the workers reserve GPUs, one for each; cpu: they reserve none")
    ] = "cuda"
    gpus: Annotated[
        str,
        Meta(
            extra={"metavar": "NAMES"},
            pattern=r"^(all|[1-9][0-9]*|[A-Za-z0-9/-]+(,[A-Za-z0-9/-]+)*,?)$",
            description="GPUs that the workers see: all, a number of GPUs, or indices or UUIDs of nvidia-smi, such as "
            "0,2; a comma follows a single index",
        ),
    ] = ALL_GPUS


@refusing
def compose(arguments: Sequence[str]) -> int:
    """Prints compose.yaml; returns the exit status: 2 for bad input."""
    config = parse(ComposeConfig, arguments, "baton compose")
    if config.device == "cpu" and config.gpus != ALL_GPUS:
        raise ConfigError("--gpus", config.gpus, "there are none with --device cpu")
    print(COMPOSE_HEADER + "\n" + as_yaml([composed(config)]), end="")
    return 0


def compose_deployment(device: Literal["cpu", "cuda"]) -> Deployment:
    """Describes the services of compose.yaml. The supervisor in the workers' container decides their numbers."""
    # An empty name of a key file means no file.
    options = DeploymentOptions(model=DEMO_WEIGHTS, prefill=1, decode=1, device=device, api_keys=("",))
    return describe(options, host="0.0.0.0", port=8000, dashboard_port=8501)


def host_workers(device: Literal["cpu", "cuda"]) -> HostWorkersConfig:
    """Returns the options of the workers' supervisor. Workers advertise their address on the container's network."""
    place = PlaceOptions(announce="eth0")
    return HostWorkersConfig(model=DEMO_WEIGHTS, device=device, store=STORE, place=place, status_file=STATUS_FILE)


def locations() -> Locations:
    """Returns the paths and addresses of the gateway and the dashboard."""
    return Locations(
        redis=STORE.redis,
        secret_file=STORE.secret_file,
        status_file=STATUS_FILE,
        gateway=f"{SCHEME_VARIABLE}://gateway:8000",
    )


def composed(config: ComposeConfig) -> Value:
    deployment = compose_deployment(config.device)
    volumes = [name for service in deployment.services for name in service.keeps]
    return {
        "services": {
            "redis": _redis(*deployment.of("redis")),
            "workers": _workers(config, deployment.of(*WORKERS)),
            **{service.role: _front(service) for service in deployment.of("gateway", "dashboard")},
            **monitoring(),
        },
        "networks": {"inside": {}},
        "volumes": {name: {} for name in (*volumes, *VOLUMES)},
        "secrets": {"baton": {"file": "${BATON_SECRET_FILE:-./secret}"}},
    }


def _redis(service: Service) -> Value:
    return {
        "image": REDIS_IMAGE,
        "command": list(redis_command(service)),
        "read_only": True,
        "restart": "unless-stopped",
        "logging": LOG_LIMITS,
        "networks": ["inside"],
        "volumes": _volumes(service),
        "healthcheck": {"test": ["CMD", *REDIS_PING], "interval": "2s", "timeout": "2s", "retries": 15},
    }


def _workers(config: ComposeConfig, workers: Sequence[Service]) -> Value:
    grace = max(service.grace for service in workers) + STOP_MARGIN_S
    command = ["launcher.host.host_workers", *_words(host_workers(config.device))]
    made = _container("workers", command, grace, STATUS_FILE)
    # Docker Compose starts a service whose container has a name once only.
    made["container_name"] = "${COMPOSE_PROJECT_NAME:-baton}-workers"
    made["volumes"] = _volumes(workers[0])
    made["secrets"] = ["baton"]
    made["environment"] = [HUB_TOKEN, HUB_ENDPOINT]  # without values: taken from the user's environment
    if config.device == "cuda":
        made["shm_size"] = RANKS_SHARED_MEMORY
        device = {"driver": "nvidia", **_reserved(config.gpus), "capabilities": ["gpu"]}
        made["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
        if config.gpus == ALL_GPUS:  # fewer GPUs have other numbers in the container
            made["environment"].append("CUDA_VISIBLE_DEVICES")
    return made


def _reserved(gpus: str) -> Value:
    if gpus == ALL_GPUS or gpus.isdecimal():
        return {"count": gpus if gpus == ALL_GPUS else int(gpus)}
    return {"device_ids": [name for name in gpus.split(",") if name]}


def _front(service: Service) -> Value:
    assert service.settings is not None
    (port,) = service.ports
    ready = f"{SCHEME_VARIABLE}://127.0.0.1:{port.number}{service.probes.ready}"
    command = [service.module, *_words(placed(service.settings, locations()))]
    made = _container(service.role, command, service.grace, ready)
    made["volumes"] = ["./keys:/keys:ro", *_volumes(service)]
    made["ports"] = [f"${{BATON_HOST:-127.0.0.1}}:${{{PORT_VARIABLES[service.role]}:-{port.number}}}:{port.number}"]
    if service.role == "gateway":  # the dashboard reads metrics only
        made["secrets"] = ["baton"]
        made["environment"] = [HUB_TOKEN, HUB_ENDPOINT]
    return made


def _container(name: str, command: Sequence[str], grace: float, place: str) -> Value:
    """Returns what all containers of our image have. `place`: status file or URL that tells whether it is ready."""
    health = {"interval": "10s", "timeout": "5s", "retries": 3, "start_period": f"{START_MINUTES.get(name, 1)}m"}
    return {
        "image": IMAGE,
        "build": {"context": ".", "args": {"TORCH_INDEX": "${BATON_TORCH_INDEX:-}"}},
        "command": [*PYTHON_COMMAND, "-m", *command],
        "user": "${BATON_UID:-1000}",
        "read_only": True,
        "tmpfs": [f"{directory}:exec,mode=1777" for directory in WRITABLE_DIRECTORIES],  # as on Docker's own layer
        "init": True,
        "restart": "unless-stopped",
        "logging": LOG_LIMITS,
        "stop_grace_period": f"{grace:.0f}s",
        "networks": ["inside"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "depends_on": {"redis": {"condition": "service_healthy"}},
        "healthcheck": {"test": ["CMD", *is_ready(place)], **health},
    }


def _words(settings: Struct) -> list[str]:
    names = {option(name): variable for name, variable in FIELD_VARIABLES.items()}
    undecided = [name for name in FIELD_VARIABLES if getattr(settings, name, "") is None]
    words = [f"{option(name)}=${{{FIELD_VARIABLES[name]}:-}}" for name in undecided]
    for each in spell(settings):
        if each.option in names:
            words.append(f"{each.option}=${{{names[each.option]}:-{each.text}}}")
        elif not each.usual:
            words.append(f"{each.option}={each.text}")
    return words


def _volumes(service: Service) -> list[str]:
    mounted = [f"{name}:{DATA_DIRECTORIES[name]}" for name in service.keeps]
    return [*mounted, f"./models:{MODELS_DIRECTORY}:ro"] if "models" in service.keeps else mounted
