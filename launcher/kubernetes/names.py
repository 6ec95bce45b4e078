"""Names the objects and labels them: the same labels everywhere, and of those the few that selectors go by."""

from contracts.version import BATON_VERSION
from launcher.kubernetes.options import ManifestsConfig
from launcher.yaml_text import Value

Labels = dict[str, str]


def name_of(config: ManifestsConfig, part: str) -> str:
    """Returns the name of an object that is for one part of the deployment."""
    return f"{config.name}-{part}"


def selector(config: ManifestsConfig, component: str = "") -> Labels:
    """Returns the labels by which the pods of a component are found, or without one those of the deployment.

    A selector can never be changed, so no version is among them.
    """
    found = {"app.kubernetes.io/name": "baton", "app.kubernetes.io/instance": config.name}
    return {**found, "app.kubernetes.io/component": component} if component else found


def labels(config: ManifestsConfig, component: str = "") -> Labels:
    """Returns the labels of an object."""
    return {
        **selector(config, component),
        "app.kubernetes.io/version": BATON_VERSION,
        "app.kubernetes.io/managed-by": "baton-manifests",
    }


def metadata(config: ManifestsConfig, part: str, component: str = "") -> Value:
    """Returns the metadata of an object."""
    made: Value = {"name": name_of(config, part)}
    if config.namespace:
        made["namespace"] = config.namespace
    return {**made, "labels": labels(config, component)}
