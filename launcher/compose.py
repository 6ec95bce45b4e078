"""Writes compose.yaml from the description of a deployment (`baton compose`): one host, in containers."""

import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from contracts.errors import ConfigError
from infra.cli import option, parse, spell
from infra.config.dashboard import DashboardConfig
from infra.config.place import PlaceOptions
from launcher.container import (
    DATA_DIRECTORIES,
    DEMO_WEIGHTS,
    IMAGE,
    MODELS_DIRECTORY,
    PYTHON_COMMAND,
    REDIS_IMAGE,
    REDIS_PING,
    is_ready,
    redis_command,
)
from launcher.deployment import (
    HUB_ENDPOINT,
    HUB_TOKEN,
    START_ORDER,
    WORKERS,
    Deployment,
    Locations,
    Service,
    describe,
    placed,
)
from launcher.options import DeploymentOptions
from launcher.yaml_text import Value, as_yaml

COMPOSE_HEADER = """\
# Baton on one host in containers: docker compose up --build --scale prefill=2
# `./baton compose > compose.yaml` has written this file; `./baton compose --device cpu` writes one for a host without a
# GPU, whose image is built with BATON_TORCH_INDEX=https://download.pytorch.org/whl/cpu.
#
#   BATON_MODEL=Qwen/Qwen3-0.6B   the model; a hub id, or a directory below ./models, which is mounted at /models
#   BATON_SECRET_FILE=./secret    the deployment's secret: `openssl rand -hex 32 > secret` makes one
#   HF_TOKEN, HF_ENDPOINT         the hub's token, for a model that needs one, and another hub than huggingface.co
#   BATON_PORT, BATON_DASHBOARD_PORT, BATON_HOST   where the endpoint and the dashboard listen on the host
#
#   BATON_API_KEYS=/keys/api-keys.json   a file of API keys in ./keys, mounted at /keys; without it clients need no key
#   BATON_DASHBOARD_KEY=/keys/dashboard  a file there with an operator's key, which the dashboard's Try it box asks with
#   BATON_TLS_CERT, BATON_TLS_KEY        a certificate and its key there, for HTTPS, with BATON_SCHEME=https
#   BATON_UID                     the user that the services run as, who has to be able to read the secret
#   BATON_GPU_SHARE               share of its GPU's memory that each worker takes
#   BATON_QUANTIZATION            how workers quantize 16-bit and 32-bit weights: none, int8, int4 or fp8
#   BATON_GATEWAYS                gateway processes on the one port; one serves a core's worth of tokens
#   BATON_HANDOFF                 auto: decode workers compute prompts themselves where that is faster; always: never
#   BATON_KV_DTYPE                number format of KV in their pools: auto (the model's), fp8 or int8
#   BATON_SPECULATION             proposer of draft tokens: none, ngram, draft, medusa, eagle or auto, with
#   BATON_DRAFT_MODEL, BATON_MEDUSA, BATON_EAGLE   the weights of the proposer, below /models
#
# Every worker asks for one NVIDIA GPU. Docker gives each of them the first one, so by default two workers share it;
# with more GPUs put `device_ids` in the place of `count`.
"""

FIELD_VARIABLES = {
    "model": "BATON_MODEL",
    "gpu_memory_utilization": "BATON_GPU_SHARE",
    "quantization": "BATON_QUANTIZATION",
    "kv_dtype": "BATON_KV_DTYPE",
    "speculation": "BATON_SPECULATION",
    "draft_model": "BATON_DRAFT_MODEL",
    "medusa": "BATON_MEDUSA",
    "eagle": "BATON_EAGLE",
    "gateways": "BATON_GATEWAYS",
    "handoff": "BATON_HANDOFF",
    "api_keys": "BATON_API_KEYS",
    "api_key_file": "BATON_DASHBOARD_KEY",
    "tls_cert": "BATON_TLS_CERT",
    "gateway_cert": "BATON_TLS_CERT",
    "tls_key": "BATON_TLS_KEY",
}
"""Field → environment variable of the user that sets it; compose.yaml always names these options."""

GPU_MEMORY_SHARE = 0.45  # for one worker of each role on the same GPU
PORT_VARIABLES = {"gateway": "BATON_PORT", "dashboard": "BATON_DASHBOARD_PORT"}
SCHEME_VARIABLE = "${BATON_SCHEME:-http}"
LOG_LIMITS: Value = {"driver": "json-file", "options": {"max-size": "16m", "max-file": "4"}}
"""By default Docker keeps all of a container's output, until the disk is full."""
START_MINUTES = {"prefill": 10, "decode": 10, "gateway": 2}
"""Minutes in which failed health checks do not count."""


class ComposeConfig(Struct, frozen=True, kw_only=True):
    """Prints compose.yaml, which `docker compose up` takes.

    Example: ./baton compose --device cpu > compose.yaml
    """

    device: Annotated[Literal["cpu", "cuda"], Meta(description="cuda: every worker reserves a GPU; cpu: none does")] = (
        "cuda"
    )


def compose(arguments: Sequence[str]) -> int:
    """Prints compose.yaml; returns the exit status: 2 for bad input."""
    try:
        config = parse(ComposeConfig, arguments, "baton compose")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(COMPOSE_HEADER + "\n" + as_yaml([composed(described(config.device))]), end="")
    return 0


def described(device: Literal["cpu", "cuda"]) -> Deployment:
    """Describes the services of compose.yaml: one worker of each role, which `--scale` multiplies."""
    # An empty name of a key file means no file.
    options = DeploymentOptions(model=DEMO_WEIGHTS, prefill=1, decode=1, device=device, api_keys=("",))
    return describe(options, host="0.0.0.0", port=8000, dashboard_port=8501)


def composed(deployment: Deployment) -> Value:
    volumes: Value = {name: {} for service in deployment.services for name in service.keeps}
    return {
        "services": {service.role: _service(service) for service in deployment.services},
        "networks": {"inside": {}},
        "volumes": volumes,
        "secrets": {"baton": {"file": "${BATON_SECRET_FILE:-./secret}"}},
    }


def locations(service: Service) -> Locations:
    """Returns the paths and addresses of a service. A worker advertises its address on the container's network."""
    return Locations(
        redis="redis://redis:6379",
        secret_file="/run/secrets/baton",
        status_file="/tmp/status",
        worker=PlaceOptions(announce="eth0"),
        gpu_share=GPU_MEMORY_SHARE if service.gpus else None,
        gateway=f"{SCHEME_VARIABLE}://gateway:8000",
        python=PYTHON_COMMAND,
    )


def _service(service: Service) -> Value:
    if service.settings is None:
        return {
            "image": REDIS_IMAGE,
            "command": list(redis_command(service)),
            "restart": "unless-stopped",
            "logging": LOG_LIMITS,
            "networks": ["inside"],
            "volumes": [f"{name}:{DATA_DIRECTORIES[name]}" for name in service.keeps],
            "healthcheck": {"test": ["CMD", *REDIS_PING], "interval": "2s", "timeout": "2s", "retries": 15},
        }
    made: Value = {
        "image": IMAGE,
        "build": {"context": ".", "args": {"TORCH_INDEX": "${BATON_TORCH_INDEX:-}"}},
        "command": [*PYTHON_COMMAND, "-m", service.module, *_words(service)],
        "user": "${BATON_UID:-1000}",
        "init": True,
        "restart": "unless-stopped",
        "logging": LOG_LIMITS,
        "stop_grace_period": f"{service.grace:.0f}s",
        "networks": ["inside"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "depends_on": {role: {"condition": "service_healthy"} for role in _before(service)},
        "volumes": _volumes(service),
        "healthcheck": _health(service),
    }
    if not isinstance(service.settings, DashboardConfig):  # the dashboard reads metrics only
        made["secrets"] = ["baton"]
    if "models" in service.keeps:
        made["environment"] = [HUB_TOKEN, HUB_ENDPOINT]  # without values: taken from the user's environment
    if service.role in PORT_VARIABLES:
        (port,) = service.ports
        made["ports"] = [f"${{BATON_HOST:-127.0.0.1}}:${{{PORT_VARIABLES[service.role]}:-{port.number}}}:{port.number}"]
    if service.gpus:
        device = {"driver": "nvidia", "count": service.gpus, "capabilities": ["gpu"]}
        made["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return made


def _words(service: Service) -> list[str]:
    assert service.settings is not None
    names = {option(name): variable for name, variable in FIELD_VARIABLES.items()}
    words = []
    for each in spell(placed(service.settings, locations(service))):
        if each.option in names:
            words.append(f"{each.option}=${{{names[each.option]}:-{each.text}}}")
        elif not each.usual:
            words.append(f"{each.option}={each.text}")
    return words


def _before(service: Service) -> list[str]:
    (group,) = [number for number, roles in enumerate(START_ORDER) if service.role in roles]
    return [role for roles in START_ORDER[:group] for role in roles]


def _volumes(service: Service) -> list[str]:
    mounted = [] if service.role in WORKERS else ["./keys:/keys:ro"]
    mounted += [f"{name}:{DATA_DIRECTORIES[name]}" for name in service.keeps]
    return [*mounted, f"./models:{MODELS_DIRECTORY}:ro"] if "models" in service.keeps else mounted


def _health(service: Service) -> Value:
    probes = service.probes
    place = f"{SCHEME_VARIABLE}://127.0.0.1:{service.ports[0].number}{probes.ready}" if probes.ready else "/tmp/status"
    return {
        "test": ["CMD", *is_ready(place)],
        "interval": "10s",
        "timeout": "5s",
        "retries": 3,
        "start_period": f"{START_MINUTES.get(service.role, 1)}m",
    }
