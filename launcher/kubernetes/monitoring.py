"""Makes the ServiceMonitor that tells the Prometheus operator to scrape the gateways."""

from launcher.kubernetes.names import metadata, name_of, selector
from launcher.kubernetes.options import ManifestsConfig
from launcher.yaml_text import Value

SCRAPE_INTERVAL = "15s"


def service_monitor(config: ManifestsConfig) -> Value:
    """Makes the ServiceMonitor. Where clients need API keys, Prometheus uses the deployment's operator key."""
    endpoint: Value = {"port": "http", "path": "/metrics", "interval": SCRAPE_INTERVAL}
    if config.api_keys:
        key = {"name": name_of(config, "own-key"), "key": "api-key"}
        endpoint["authorization"] = {"type": "Bearer", "credentials": key}
    if config.tls_cert:
        certificate = {"secret": {"name": name_of(config, "tls"), "key": "tls.crt"}}
        endpoint["scheme"] = "https"
        # Prometheus connects to pod addresses, but the certificate is for the name that clients use.
        endpoint["tlsConfig"] = {"ca": certificate, "insecureSkipVerify": True}
    made = metadata(config, "gateway", "gateway")
    made["labels"] |= dict(label.split("=", 1) for label in config.monitor_label)
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": made,
        "spec": {"selector": {"matchLabels": selector(config, "gateway")}, "endpoints": [endpoint]},
    }
