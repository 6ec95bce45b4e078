"""Makes the Deployments of our own services."""

from launcher.deployment import Service
from launcher.kubernetes.autoscaling import scales
from launcher.kubernetes.names import metadata, selector
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.pods import pod_template
from launcher.yaml_text import Value

OLD_VERSIONS = 3  # that `kubectl rollout undo` finds


def deployment(config: ManifestsConfig, service: Service) -> Value:
    """Makes a Deployment. Where an autoscaler decides how many pods there are, it does not say so itself."""
    spec: Value = {} if scales(config, service) else {"replicas": service.replicas}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(config, service.role, service.role),
        "spec": {
            **spec,
            "revisionHistoryLimit": OLD_VERSIONS,
            "selector": {"matchLabels": selector(config, service.role)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _rolling(service)},
            "template": pod_template(config, service),
        },
    }


def _rolling(service: Service) -> Value:
    """Replaces gateways by such as are there already; a worker's GPU may be the last one, so it goes first."""
    return {"maxSurge": 0, "maxUnavailable": 1} if service.gpus else {"maxSurge": 1, "maxUnavailable": 0}
