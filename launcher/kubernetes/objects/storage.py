"""Makes the PersistentVolumeClaim for models, which all workers and gateways share and which outlives pods."""

from launcher.containers.yaml_text import Value
from launcher.kubernetes.names import metadata
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.quantities import size


def models_claim(config: ManifestsConfig) -> Value:
    spec: Value = {
        "accessModes": [config.models_access],
        "resources": {"requests": {"storage": size(config.models_size)}},
    }
    if config.storage_class:
        spec["storageClassName"] = config.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(config, "models"),
        "spec": spec,
    }
