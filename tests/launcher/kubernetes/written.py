"""Manifests for tests: of deployments that differ in all that changes what is written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys
from launcher.kubernetes.manifests import manifests
from launcher.kubernetes.objects.secrets import read_secrets
from launcher.kubernetes.options import IngressOptions, ManifestsConfig, PodPlacement
from launcher.kubernetes.replicas import with_replicas
from tests.certificates import make_certificate

Manifest = Any

VARIANTS: dict[str, dict[str, Any]] = {
    "demo": {},
    "hub": {
        "model": "Qwen/Qwen3-0.6B",
        "namespace": "llm",
        "name": "qwen",
        "service_monitor": True,
        "prefill": 2,
        "monitor_label": ("release=metrics",),
        "board_and_alerts": True,
        "hf_token_secret": "hub",
        "models_access": "pod",
        "worker_surge": 1,
        "adapter_namespace": "monitoring",
        "ingress": IngressOptions(
            hostname="llm.example",
            ingress_class="nginx",
            ingress_tls_secret="llm-tls",
            ingress_annotation=("nginx.ingress.kubernetes.io/proxy-read-timeout=600",),
        ),
        "placement": PodPlacement(
            node_selector=("gpu=l4", "pool=serving"),
            runtime_class="nvidia",
            priority_class="high",
            env=("NCCL_DEBUG=INFO", "EMPTY="),
            scratch_size=1 << 30,
        ),
    },
    "secured": {
        "model": "/models/mine",
        "api_keys": True,
        "tls": True,
        "service_monitor": True,
        "gateways": 2,
        "board_and_alerts": True,
    },
    "theirs": {
        "model": "Qwen/Qwen3-0.6B",
        "redis": "rediss://:their-password@redis.example:6380/0",
        "existing_secret": "mine",
        "models_claim": "models",
        "image_pull_secret": "registry",
        "hf_token_secret": "hub:the-token",
        "hf_endpoint": "https://hub.example:8443",
        "storage_class": "fast",
        "dashboard_port": 0,
        "ingress": IngressOptions(hostname="llm.example", route_gateway="edge/public", service_type="NodePort"),
    },
    "cluster": {"redis": "redis+cluster://a.example:6379,b.example:6379", "prefill": 0, "max_prefill": 0},
    "cpu": {"device": "cpu", "max_prefill": 0, "max_decode": 0, "store_bytes": 4 << 30},
}


def options(variant: str, directory: Path) -> ManifestsConfig:
    given = dict(VARIANTS[variant])
    if given.pop("api_keys", False):
        made = make_key("app", KeyOptions(), 0.0)
        change_keys(directory / "keys.json", lambda keys: [made.record], create=True)
        given["api_keys"] = (str(directory / "keys.json"),)
    if given.pop("tls", False):
        given["tls_cert"], given["tls_key"] = map(str, make_certificate(directory))
    return with_replicas(ManifestsConfig(**given))[0]


def written(variant: str, directory: Path) -> list[Manifest]:
    config = options(variant, directory)
    return manifests(config, read_secrets(config))


def pod_specs(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for each in manifests:
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


variants = pytest.mark.parametrize("variant", VARIANTS)
