"""Makes the Services of Redis, gateways and dashboard, and headless Services that list the workers' pods."""

from launcher.containers.yaml_text import Value
from launcher.deployment import WORKERS, Service
from launcher.kubernetes.names import metadata, selector
from launcher.kubernetes.options import ManifestsConfig


def service_of(config: ManifestsConfig, service: Service) -> Value:
    """Makes the Service. Workers advertise their own addresses in Redis: their headless Service only lists them."""
    headless = service.role in (*WORKERS, "redis")
    made = metadata(config, service.role, service.role)
    if service.role == "gateway":
        scheme = "https" if config.tls_cert else "http"
        made["annotations"] = {
            "prometheus.io/scrape": "true",
            "prometheus.io/path": "/metrics",
            "prometheus.io/port": str(config.port),
            "prometheus.io/scheme": scheme,
        }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": made,
        "spec": {
            **({"clusterIP": "None"} if headless else {"type": _type_of(config, service)}),
            "selector": selector(config, service.role),
            "ports": [
                {"name": port.name, "port": port.number, "targetPort": port.name, "protocol": "TCP"}
                for port in service.ports
            ],
        },
    }


def _type_of(config: ManifestsConfig, service: Service) -> str:
    return config.ingress.service_type if service.role == "gateway" else "ClusterIP"
