"""Makes the NetworkPolicies. Only pods of the deployment reach workers and Redis."""

from urllib.parse import urlsplit

from launcher.containers.container import MODELS_DIRECTORY
from launcher.containers.yaml_text import Value
from launcher.deployment import Role, Service
from launcher.kubernetes.names import metadata, selector
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.place import needs_models

ALLOWED_CLIENTS: dict[Role, dict[str, tuple[Role, ...]]] = {
    "redis": {"redis": ("prefill", "decode", "gateway", "dashboard")},
    "prefill": {"gateways": ("gateway",)},
    "decode": {"gateways": ("gateway",), "handoffs": ("prefill",), "kv": ("prefill",)},
}
"""Allowed clients of each internal port; every other connection is denied."""

ALLOWED_SERVERS: dict[Role, tuple[Role, ...]] = {
    "redis": (),
    "prefill": ("redis", "decode"),
    "decode": ("redis",),
    "gateway": ("redis", "prefill", "decode"),
    "dashboard": ("redis", "gateway"),
}
"""Services to which each service may connect."""

DNS_PORTS: Value = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
HTTPS_PORT = 443
REDIS_PORT = 6379


def network_policy(config: ManifestsConfig, service: Service) -> Value:
    """Makes the policy of a service's pods, for connections in both directions."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(config, service.role, service.role),
        "spec": {
            "podSelector": {"matchLabels": selector(config, service.role)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": _ingress(config, service),
            "egress": _egress(config, service),
        },
    }


def _ingress(config: ManifestsConfig, service: Service) -> list[Value]:
    callers = ALLOWED_CLIENTS.get(service.role)
    if callers is None:
        # The dashboard shows the figures of all tenants: without API keys it is reached by `kubectl port-forward` only.
        open_to_all = service.role == "gateway" or bool(config.api_keys)
        return [{"ports": [_port(port.name) for port in service.ports]}] if open_to_all else []
    return [
        {"from": [_pods(config, role) for role in callers[port.name]], "ports": [_port(port.name)]}
        for port in service.ports
    ]


def _egress(config: ManifestsConfig, service: Service) -> list[Value]:
    if service.role == "redis":
        return []
    if config.redis.partition("://")[0] not in ("", "redis", "rediss"):
        return [{}]  # a cluster's nodes may have any address and port
    allowed: list[Value] = [DNS_PORTS, {"to": [_pods(config, role) for role in ALLOWED_SERVERS[service.role]]}]
    if config.redis:
        allowed.append({"ports": [{"port": urlsplit(config.redis).port or REDIS_PORT, "protocol": "TCP"}]})
    return allowed if service.role == "dashboard" else [*allowed, *_hub(config)]


def _hub(config: ManifestsConfig) -> list[Value]:
    if not needs_models(config) or config.model.startswith(f"{MODELS_DIRECTORY}/"):
        return []
    endpoint = urlsplit(config.hf_endpoint)
    port = endpoint.port or (80 if endpoint.scheme == "http" else HTTPS_PORT)
    return [{"ports": [{"port": port, "protocol": "TCP"}]}]


def _port(name: str) -> Value:
    return {"port": name, "protocol": "TCP"}


def _pods(config: ManifestsConfig, role: Role) -> Value:
    return {"podSelector": {"matchLabels": selector(config, role)}}
