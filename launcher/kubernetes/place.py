"""Says where the services find things in their pods: what is mounted where, which addresses, which ports."""

from msgspec.structs import replace

from infra.config.dashboard import DashboardConfig
from infra.config.place import PlaceOptions
from launcher.container import DEMO_WEIGHTS, HOME, MODELS, PYTHON, RUN, STATUS_FILE
from launcher.deployment import (
    ENVIRONMENT,
    HUB_ENDPOINT,
    HUB_TOKEN,
    WORKERS,
    Deployment,
    Place,
    Port,
    Service,
    describe,
)
from launcher.kubernetes.names import name_of
from launcher.kubernetes.options import ManifestsConfig
from launcher.options import DEMO_MODEL
from launcher.yaml_text import Value

SECRET = "/etc/baton/secret"
KEYS = "/etc/baton/keys"
OWN_KEY = "/etc/baton/own-key"
TLS = "/etc/baton/tls"
WRITABLE = {"tmp": "/tmp", "run": RUN, "home": HOME}
"""Directories of a pod's own that go with it; the rest of its file system is read-only."""

OWN_KEYS_FILE = "own-keys.json"
FIRST_PORT = 7000
"""The first port that a worker listens on: pods have addresses of their own, so all workers have the same ports."""

REDIS_URL, REDIS_PASSWORD = "BATON_REDIS_URL", "REDISCLI_AUTH"  # variables; the other one is read by redis-cli


def described(config: ManifestsConfig) -> Deployment:
    """Describes the deployment as it is in its pods: files are where Secrets are mounted, ports have numbers."""
    here = in_pods(config)
    made = describe(here, host="0.0.0.0", port=config.port, dashboard_port=config.dashboard_port)
    return Deployment(tuple(_numbered(config, service) for service in made.services))


def in_pods(config: ManifestsConfig) -> ManifestsConfig:
    """Returns the options with what is decided where nobody has, and with files where Secrets are mounted."""
    files = tuple(f"{KEYS}/{number}.json" for number in range(len(config.api_keys)))
    return replace(
        config,
        prefill=1 if config.prefill is None else config.prefill,
        device="cuda" if config.device == "auto" else config.device,
        api_keys=files,
        tls_cert=f"{TLS}/tls.crt" if config.tls_cert else "",
        tls_key=f"{TLS}/tls.key" if config.tls_key else "",
    )


def _numbered(config: ManifestsConfig, service: Service) -> Service:
    if service.role in WORKERS:
        ports = tuple(Port(port.name, FIRST_PORT + place) for place, port in enumerate(service.ports))
        return replace(service, ports=ports)
    if service.role == "gateway":
        assert service.told is not None
        told = replace(service.told, gateways=config.gateways)  # processes that share a pod's port
        return replace(service, replicas=config.gateway_pods, told=told)
    return service


def place_of(config: ManifestsConfig, service: Service) -> Place:
    """Returns where a service finds things. Kubernetes puts values in the place of `$(NAMES)`."""
    ports = f"{service.ports[0].number}-{service.ports[-1].number}"
    dashboard = isinstance(service.told, DashboardConfig)
    return Place(
        redis=f"$({REDIS_URL})",
        model=DEMO_WEIGHTS if config.model == DEMO_MODEL else "",
        secret_file="" if dashboard else f"{SECRET}/secret",
        status_file=STATUS_FILE,
        worker=PlaceOptions(announce="$(POD_IP)", ports=ports) if service.role in WORKERS else PlaceOptions(),
        gateway=f"http{'s' * bool(config.tls_cert)}://{name_of(config, 'gateway')}:{config.port}",
        own_keys=f"{KEYS}/{OWN_KEYS_FILE}" if config.api_keys and service.role == "gateway" else "",
        own_key=f"{OWN_KEY}/api-key" if config.api_keys and dashboard else "",
        python=PYTHON,
    )


def hub_token(config: ManifestsConfig) -> list[Value]:
    """Returns the variable with the hub's token, for what downloads a model."""
    name, _, key = config.hf_token_secret.partition(":")
    held = {"secretKeyRef": {"name": name, "key": key or "token"}}
    return [{"name": HUB_TOKEN, "valueFrom": held}] if name else []


def needs_models(config: ManifestsConfig) -> bool:
    """Tells whether there has to be a volume with models: the demo model is in the image."""
    return config.model != DEMO_MODEL


def settings(config: ManifestsConfig) -> dict[str, str]:
    """Returns what every service has in its environment."""
    hub = {HUB_ENDPOINT: config.hf_endpoint} if config.hf_endpoint else {}
    cache = f"{MODELS}/huggingface" if needs_models(config) else f"{HOME}/hub"
    return {**ENVIRONMENT, **hub, "HOME": HOME, "HF_HOME": cache}
