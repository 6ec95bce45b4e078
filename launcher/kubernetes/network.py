"""Makes the NetworkPolicies: who may reach whom. Workers and Redis are reached by the deployment's own pods only."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from launcher.container import MODELS
from launcher.deployment import Role, Service
from launcher.kubernetes.names import metadata, selector
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.place import needs_models
from launcher.yaml_text import Value

CALLERS: dict[Role, dict[str, tuple[Role, ...]]] = {
    "redis": {"redis": ("prefill", "decode", "gateway", "dashboard")},
    "prefill": {"gateways": ("gateway",)},
    "decode": {"gateways": ("gateway",), "handoffs": ("prefill",), "kv": ("prefill",)},
}
"""The services that may come to each port of those that nobody else may reach."""

CALLED: dict[Role, tuple[Role, ...]] = {
    "redis": (),
    "prefill": ("redis", "decode"),
    "decode": ("redis",),
    "gateway": ("redis", "prefill", "decode"),
    "dashboard": ("redis", "gateway"),
}
"""The services that each one asks."""

DNS: Value = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
HTTPS_PORT = 443
REDIS_PORT = 6379


def network_policy(config: ManifestsConfig, service: Service, callers: Sequence[str] = ()) -> Value:
    """Makes the policy of a service's pods, for both ways. `callers`: who may come to Redis, if not the services."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(config, service.role, service.role),
        "spec": {
            "podSelector": {"matchLabels": selector(config, service.role)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": _ingress(config, service, callers),
            "egress": _egress(config, service),
        },
    }


def _ingress(config: ManifestsConfig, service: Service, others: Sequence[str]) -> list[Value]:
    callers = CALLERS.get(service.role)
    if callers is None:
        # The dashboard shows everybody's figures: without API keys it is reached by `kubectl port-forward` only.
        open_to_all = service.role == "gateway" or bool(config.api_keys)
        return [{"ports": [_port(port.name) for port in service.ports]}] if open_to_all else []
    return [
        {"from": [_pods(config, part) for part in others or callers[port.name]], "ports": [_port(port.name)]}
        for port in service.ports
    ]


def _egress(config: ManifestsConfig, service: Service) -> list[Value]:
    if service.role == "redis":
        return []
    if config.redis.partition("://")[0] not in ("", "redis", "rediss"):
        return [{}]  # a cluster's nodes may have any address and port
    allowed: list[Value] = [DNS, {"to": [_pods(config, role) for role in CALLED[service.role]]}]
    if config.redis:
        allowed.append({"ports": [{"port": urlsplit(config.redis).port or REDIS_PORT, "protocol": "TCP"}]})
    return allowed if service.role == "dashboard" else [*allowed, *hub(config)]


def hub(config: ManifestsConfig) -> list[Value]:
    """Returns what lets a pod out to the hub that has the model, where one has it."""
    if not needs_models(config) or config.model.startswith(f"{MODELS}/"):
        return []
    endpoint = urlsplit(config.hf_endpoint)
    port = endpoint.port or (80 if endpoint.scheme == "http" else HTTPS_PORT)
    return [{"ports": [{"port": port, "protocol": "TCP"}]}]


def _port(name: str) -> Value:
    return {"port": name, "protocol": "TCP"}


def _pods(config: ManifestsConfig, part: str) -> Value:
    return {"podSelector": {"matchLabels": selector(config, part)}}
