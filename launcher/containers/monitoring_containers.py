"""The containers of compose.yaml's profile `monitoring`: Prometheus, and Grafana with the board.

Their settings are the files of docs/monitoring, which a container mounts from the checkout.
"""

from collections.abc import Sequence

from launcher.containers.container import LOG_LIMITS
from launcher.containers.yaml_text import Value
from launcher.options import MONITORING_DIRECTORY, ROOT

PROFILE = "monitoring"
PROMETHEUS_IMAGE = "prom/prometheus:v3.5.0"
GRAFANA_IMAGE = "grafana/grafana:12.1.0"
PROMETHEUS_VOLUME, GRAFANA_VOLUME = "prometheus", "grafana"
VOLUMES = (PROMETHEUS_VOLUME, GRAFANA_VOLUME)
FILES = f"./{MONITORING_DIRECTORY.relative_to(ROOT)}"
SCRAPE_KEY = "${BATON_MONITORING_KEY:-/dev/null}:/run/secrets/key:ro"
"""The host's file with an operator's key. An empty key is what a gateway without keys ignores."""


def monitoring() -> dict[str, Value]:
    return {
        "prometheus": {
            **_container(PROMETHEUS_IMAGE, 9090, "/-/ready"),
            "command": ["--config.file=/etc/prometheus/prometheus.yaml", "--storage.tsdb.path=/prometheus"],
            "volumes": [
                *_mounted("/etc/prometheus", "prometheus.yaml", "alerts.yaml"),
                f"{FILES}/targets-${{BATON_SCHEME:-http}}.json:/etc/prometheus/targets.json:ro",
                SCRAPE_KEY,
                f"{PROMETHEUS_VOLUME}:/prometheus",
            ],
        },
        "grafana": {
            **_container(GRAFANA_IMAGE, 3000, "/api/health"),
            "environment": {
                "GF_SECURITY_ADMIN_PASSWORD": "${BATON_GRAFANA_PASSWORD:-admin}",
                "GF_ANALYTICS_REPORTING_ENABLED": "false",
                "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
            },
            "volumes": [
                *_mounted("/etc/grafana/provisioning/datasources", "grafana-datasource.yaml"),
                *_mounted("/etc/grafana/provisioning/dashboards", "grafana-boards.yaml"),
                *_mounted("/etc/grafana/boards", "grafana.json"),
                f"{GRAFANA_VOLUME}:/var/lib/grafana",
            ],
        },
    }


def _container(image: str, port: int, ready: str) -> dict[str, Value]:
    health = ["CMD", "wget", "-q", "-O", "/dev/null", f"http://127.0.0.1:{port}{ready}"]
    return {
        "image": image,
        "profiles": [PROFILE],
        "read_only": True,
        "tmpfs": ["/tmp"],
        "restart": "unless-stopped",
        "logging": LOG_LIMITS,
        "networks": ["inside"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "ports": [f"127.0.0.1:{port}:{port}"],
        "healthcheck": {"test": health, "interval": "10s", "timeout": "5s", "retries": 3, "start_period": "1m"},
    }


def _mounted(directory: str, *names: str) -> Sequence[str]:
    return [f"{FILES}/{name}:{directory}/{name}:ro" for name in names]
