"""Names and labels the objects; selectors use a subset of the labels."""

from contracts.version import BATON_VERSION
from launcher.containers.yaml_text import Value
from launcher.kubernetes.options import ManifestsConfig

Labels = dict[str, str]


def name_of(config: ManifestsConfig, part: str) -> str:
    return f"{config.name}-{part}"


def selector(config: ManifestsConfig, component: str = "") -> Labels:
    """Returns the labels that select the pods of a component, or of the whole deployment without a component.

    Kubernetes never lets a selector change, so the version is not among them.
    """
    found = {"app.kubernetes.io/name": "baton", "app.kubernetes.io/instance": config.name}
    return {**found, "app.kubernetes.io/component": component} if component else found


def labels(config: ManifestsConfig, component: str = "") -> Labels:
    return {
        **selector(config, component),
        "app.kubernetes.io/version": BATON_VERSION,
        "app.kubernetes.io/managed-by": "baton-manifests",
    }


def metadata(config: ManifestsConfig, part: str, component: str = "") -> Value:
    made: Value = {"name": name_of(config, part)}
    if config.namespace:
        made["namespace"] = config.namespace
    return {**made, "labels": labels(config, component)}
