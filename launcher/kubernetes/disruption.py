"""Makes the PodDisruptionBudgets: of pods of one kind, a drained node takes one at a time, so that others can go on."""

from launcher.deployment import Service
from launcher.kubernetes.names import metadata, selector
from launcher.kubernetes.options import ManifestsConfig
from launcher.yaml_text import Value


def disruption_budget(config: ManifestsConfig, service: Service) -> Value:
    """Makes the budget of a service's pods."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(config, service.role, service.role),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(config, service.role)}},
    }
