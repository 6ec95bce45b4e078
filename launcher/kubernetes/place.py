"""Defines the paths, addresses and ports of services inside their pods."""

from msgspec.structs import replace

from infra.config.dashboard import DashboardConfig
from infra.config.place import PlaceOptions
from launcher.containers.container import (
    DEMO_WEIGHTS,
    HOME_DIRECTORY,
    MODELS_DIRECTORY,
    PYTHON_COMMAND,
    RUN_DIRECTORY,
    STATUS_FILE,
)
from launcher.containers.yaml_text import Value
from launcher.deployment import (
    HUB_ENDPOINT,
    HUB_TOKEN,
    SERVICE_ENVIRONMENT,
    WORKERS,
    Deployment,
    Locations,
    Port,
    Service,
    describe,
)
from launcher.kubernetes.names import name_of
from launcher.kubernetes.options import ManifestsConfig
from launcher.options import DEMO_MODEL

SECRET_DIRECTORY = "/etc/baton/secret"
KEYS_DIRECTORY = "/etc/baton/keys"
OPERATOR_KEY_DIRECTORY = "/etc/baton/own-key"
TLS_DIRECTORY = "/etc/baton/tls"
WRITABLE_DIRECTORIES = {"tmp": "/tmp", "run": RUN_DIRECTORY, "home": HOME_DIRECTORY}
"""Directories that last as long as the pod; the rest of its file system is read-only."""

OPERATOR_KEYS_FILE = "own-keys.json"
FIRST_WORKER_PORT = 7000  # each pod has its own address, so all workers listen on the same ports

REDIS_URL, REDIS_PASSWORD = "BATON_REDIS_URL", "REDISCLI_AUTH"  # environment variables; redis-cli reads the second


def pods_deployment(config: ManifestsConfig) -> Deployment:
    """Describes the deployment with the paths and port numbers that it has inside pods."""
    made = describe(_with_pod_paths(config), host="0.0.0.0", port=config.port, dashboard_port=config.dashboard_port)
    return Deployment(tuple(_with_ports_and_replicas(config, service) for service in made.services))


def _with_pod_paths(config: ManifestsConfig) -> ManifestsConfig:
    files = tuple(f"{KEYS_DIRECTORY}/{number}.json" for number in range(len(config.api_keys)))
    return replace(
        config,
        device="cuda" if config.device == "auto" else config.device,
        api_keys=files,
        tls_cert=f"{TLS_DIRECTORY}/tls.crt" if config.tls_cert else "",
        tls_key=f"{TLS_DIRECTORY}/tls.key" if config.tls_key else "",
    )


def _with_ports_and_replicas(config: ManifestsConfig, service: Service) -> Service:
    if service.role in WORKERS:
        ports = tuple(Port(port.name, FIRST_WORKER_PORT + place) for place, port in enumerate(service.ports))
        return replace(service, ports=ports)
    if service.role == "gateway":
        assert service.settings is not None
        settings = replace(service.settings, gateways=config.gateways)  # processes that share a pod's port
        return replace(service, replicas=config.gateway_pods, settings=settings)
    return service


def locations(config: ManifestsConfig, service: Service) -> Locations:
    """Returns the paths and addresses of a service in its pod. Kubernetes replaces each `$(NAME)` by its value."""
    ports = f"{service.ports[0].number}-{service.ports[-1].number}"
    dashboard = isinstance(service.settings, DashboardConfig)
    return Locations(
        redis=f"$({REDIS_URL})",
        model=DEMO_WEIGHTS if config.model == DEMO_MODEL else "",
        secret_file="" if dashboard else f"{SECRET_DIRECTORY}/secret",
        status_file=STATUS_FILE,
        worker=PlaceOptions(announce="$(POD_IP)", ports=ports) if service.role in WORKERS else PlaceOptions(),
        gateway=f"http{'s' * bool(config.tls_cert)}://{name_of(config, 'gateway')}:{config.port}",
        operator_keys_file=f"{KEYS_DIRECTORY}/{OPERATOR_KEYS_FILE}"
        if config.api_keys and service.role == "gateway"
        else "",
        operator_key_file=f"{OPERATOR_KEY_DIRECTORY}/api-key" if config.api_keys and dashboard else "",
        python=PYTHON_COMMAND,
    )


def hub_token(config: ManifestsConfig) -> list[Value]:
    """Returns the environment variable with the hub token, for pods that download a model; empty without a token."""
    name, _, key = config.hf_token_secret.partition(":")
    reference = {"secretKeyRef": {"name": name, "key": key or "token"}}
    return [{"name": HUB_TOKEN, "valueFrom": reference}] if name else []


def needs_models(config: ManifestsConfig) -> bool:
    return config.model != DEMO_MODEL


def environment(config: ManifestsConfig) -> dict[str, str]:
    """Returns the environment variables of all pods."""
    hub = {HUB_ENDPOINT: config.hf_endpoint} if config.hf_endpoint else {}
    cache = f"{MODELS_DIRECTORY}/huggingface" if needs_models(config) else f"{HOME_DIRECTORY}/hub"
    # A new pod finds the kernels that others compiled. A volume with the model itself is read-only.
    writes_volume = needs_models(config) and not config.model.startswith(f"{MODELS_DIRECTORY}/")
    triton = {"TRITON_CACHE_DIR": f"{MODELS_DIRECTORY}/baton/triton"} if writes_volume else {}
    homes = {"HOME": HOME_DIRECTORY, "HF_HOME": cache}
    return {
        **SERVICE_ENVIRONMENT,
        **hub,
        **triton,
        **homes,
        **dict(each.split("=", 1) for each in config.placement.env),
    }
