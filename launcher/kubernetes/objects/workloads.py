"""Makes the Deployments of gateways, workers and dashboard."""

from launcher.containers.yaml_text import Value
from launcher.deployment import Service
from launcher.kubernetes.names import metadata, selector
from launcher.kubernetes.objects.autoscaling import is_autoscaled
from launcher.kubernetes.objects.pods import pod_template
from launcher.kubernetes.options import ManifestsConfig

OLD_REVISIONS = 3  # for `kubectl rollout undo`


def deployment(config: ManifestsConfig, service: Service) -> Value:
    """Makes a Deployment, without a number of replicas where an autoscaler sets it."""
    spec: Value = {} if is_autoscaled(config, service) else {"replicas": service.replicas}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(config, service.role, service.role),
        "spec": {
            **spec,
            "revisionHistoryLimit": OLD_REVISIONS,
            "selector": {"matchLabels": selector(config, service.role)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _rolling(config, service)},
            "template": pod_template(config, service),
        },
    }


def _rolling(config: ManifestsConfig, service: Service) -> Value:
    """Starts the new pod first, with GPUs only if told to: the cluster may have no free GPU until the old pod ends."""
    surge = config.worker_surge if service.gpus else 1
    return {"maxSurge": surge, "maxUnavailable": 0 if surge else 1}
