"""Makes the object by which clients outside the cluster reach the gateways: an Ingress, or an HTTPRoute."""

from launcher.containers.yaml_text import Value
from launcher.kubernetes.names import metadata, name_of
from launcher.kubernetes.options import ManifestsConfig


def ingress_or_route(config: ManifestsConfig) -> list[Value]:
    """Returns the Ingress or HTTPRoute of `--hostname`; none without it: the Service alone leads to the gateways."""
    if not config.ingress.hostname:
        return []
    return [_route(config) if config.ingress.route_gateway else _ingress(config)]


def _ingress(config: ManifestsConfig) -> Value:
    options, made = config.ingress, metadata(config, "gateway", "gateway")
    if options.ingress_annotation:
        made["annotations"] = dict(each.split("=", 1) for each in options.ingress_annotation)
    service = {"name": name_of(config, "gateway"), "port": {"name": "http"}}
    rule = {"path": "/", "pathType": "Prefix", "backend": {"service": service}}
    spec: Value = {"rules": [{"host": options.hostname, "http": {"paths": [rule]}}]}
    if options.ingress_class:
        spec["ingressClassName"] = options.ingress_class
    if options.ingress_tls_secret:
        spec["tls"] = [{"hosts": [options.hostname], "secretName": options.ingress_tls_secret}]
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": made, "spec": spec}


def _route(config: ManifestsConfig) -> Value:
    namespace, _, name = config.ingress.route_gateway.rpartition("/")
    parent = {"name": name, **({"namespace": namespace} if namespace else {})}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "backendRefs": [{"name": name_of(config, "gateway"), "port": config.port}],
        "timeouts": {"request": "0s"},  # none: an answer streams for minutes, and gateways have a limit of their own
    }
    return {
        "apiVersion": "gateoptions.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(config, "gateway", "gateway"),
        "spec": {"parentRefs": [parent], "hostnames": [config.ingress.hostname], "rules": [rule]},
    }
