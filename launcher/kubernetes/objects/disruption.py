"""Makes the PodDisruptionBudgets: draining nodes removes at most one pod of each service at a time."""

from launcher.containers.yaml_text import Value
from launcher.deployment import Service
from launcher.kubernetes.names import metadata, selector
from launcher.kubernetes.options import ManifestsConfig


def disruption_budget(config: ManifestsConfig, service: Service) -> Value:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(config, service.role, service.role),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(config, service.role)}},
    }
