"""Makes the way from outside of the cluster to the gateways: an Ingress, or an HTTPRoute of the Gateway API."""

from launcher.containers.yaml_text import Value
from launcher.kubernetes.names import metadata, name_of
from launcher.kubernetes.options import ManifestsConfig


def way_in(config: ManifestsConfig) -> list[Value]:
    """Returns the object that `--hostname` asks for; none without it, when the Service alone leads to the gateways."""
    if not config.outside.hostname:
        return []
    return [_route(config) if config.outside.route_gateway else _ingress(config)]


def _ingress(config: ManifestsConfig) -> Value:
    way, made = config.outside, metadata(config, "gateway", "gateway")
    if way.ingress_annotation:
        made["annotations"] = dict(each.split("=", 1) for each in way.ingress_annotation)
    service = {"name": name_of(config, "gateway"), "port": {"name": "http"}}
    rule = {"path": "/", "pathType": "Prefix", "backend": {"service": service}}
    spec: Value = {"rules": [{"host": way.hostname, "http": {"paths": [rule]}}]}
    if way.ingress_class:
        spec["ingressClassName"] = way.ingress_class
    if way.ingress_tls_secret:
        spec["tls"] = [{"hosts": [way.hostname], "secretName": way.ingress_tls_secret}]
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": made, "spec": spec}


def _route(config: ManifestsConfig) -> Value:
    namespace, _, name = config.outside.route_gateway.rpartition("/")
    parent = {"name": name, **({"namespace": namespace} if namespace else {})}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "backendRefs": [{"name": name_of(config, "gateway"), "port": config.port}],
        "timeouts": {"request": "0s"},  # none: an answer streams for minutes, and gateways have a limit of their own
    }
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(config, "gateway", "gateway"),
        "spec": {"parentRefs": [parent], "hostnames": [config.outside.hostname], "rules": [rule]},
    }
