"""Makes the ServiceMonitor by which Prometheus' operator finds the gateways' figures."""

from launcher.kubernetes.names import metadata, name_of, selector
from launcher.kubernetes.options import ManifestsConfig
from launcher.yaml_text import Value

EVERY = "15s"


def service_monitor(config: ManifestsConfig) -> Value:
    """Makes the ServiceMonitor. It asks with the deployment's own key, where keys are needed."""
    endpoint: Value = {"port": "http", "path": "/metrics", "interval": EVERY}
    if config.api_keys:
        key = {"name": name_of(config, "own-key"), "key": "api-key"}
        endpoint["authorization"] = {"type": "Bearer", "credentials": key}
    if config.tls_cert:
        certificate = {"secret": {"name": name_of(config, "tls"), "key": "tls.crt"}}
        endpoint["scheme"] = "https"
        # A certificate is for the name that clients know, and Prometheus asks each pod by its address.
        endpoint["tlsConfig"] = {"ca": certificate, "insecureSkipVerify": True}
    made = metadata(config, "gateway", "gateway")
    made["labels"] |= dict(label.split("=", 1) for label in config.monitor_label)
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": made,
        "spec": {"selector": {"matchLabels": selector(config, "gateway")}, "endpoints": [endpoint]},
    }
