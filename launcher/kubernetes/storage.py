"""Makes the claim of the volume that keeps models between starts, for all pods that read them."""

from launcher.kubernetes.names import metadata
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.quantities import size
from launcher.yaml_text import Value


def models_claim(config: ManifestsConfig) -> Value:
    """Makes the claim."""
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
