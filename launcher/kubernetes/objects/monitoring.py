"""Makes what Prometheus' operator and Grafana take: the ServiceMonitor, the alert rules, the board."""

import yaml

from launcher.containers.yaml_text import Value
from launcher.kubernetes.names import metadata, name_of, selector
from launcher.kubernetes.options import ManifestsConfig
from launcher.options import MONITORING_DIRECTORY

SCRAPE_INTERVAL = "15s"
OPERATOR_API = "monitoring.coreos.com/v1"
BOARD_LABEL = {"grafana_dashboard": "1"}
"""Label by which the sidecar of Grafana's chart, and so of kube-prometheus-stack, finds boards."""


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
    made["labels"] |= _wanted_labels(config)
    return {
        "apiVersion": OPERATOR_API,
        "kind": "ServiceMonitor",
        "metadata": made,
        "spec": {"selector": {"matchLabels": selector(config, "gateway")}, "endpoints": [endpoint]},
    }


def board_and_alerts(config: ManifestsConfig) -> list[Value]:
    """Makes the PrometheusRule and the ConfigMap with the board, from the files of docs/monitoring."""
    rules, board = metadata(config, "alerts"), metadata(config, "board")
    rules["labels"] |= _wanted_labels(config)
    board["labels"] |= BOARD_LABEL
    spec = yaml.safe_load((MONITORING_DIRECTORY / "alerts.yaml").read_text())
    data = {"baton.json": (MONITORING_DIRECTORY / "grafana.json").read_text()}
    return [
        {"apiVersion": OPERATOR_API, "kind": "PrometheusRule", "metadata": rules, "spec": spec},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": board, "data": data},
    ]


def _wanted_labels(config: ManifestsConfig) -> dict[str, str]:
    return dict(label.split("=", 1) for label in config.monitor_label)
