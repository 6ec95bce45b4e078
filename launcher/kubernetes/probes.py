"""Makes the probes of a service: each is answered by the service itself, by its HTTP port or by its status file."""

from infra.config.dashboard import DashboardConfig
from infra.config.gateway import GatewayConfig
from launcher.container import STATUS_FILE, is_alive, is_ready
from launcher.deployment import Service
from launcher.kubernetes.options import ManifestsConfig
from launcher.yaml_text import Value

PERIOD = 5  # s between two looks
PATIENCE = 5  # s that an answer may take
SILENT_SECONDS = 30  # without a sign of life, after which a worker is started again
GATEWAY_MINUTES = 10  # that a gateway's start may take: it reads a tokenizer, which may have to be downloaded


def probes(config: ManifestsConfig, service: Service) -> Value:
    """Returns the probes of a service of ours: one until it has started, one for its readiness, one for its life."""
    asked = service.probes
    minutes = GATEWAY_MINUTES if service.role in ("gateway", "dashboard") else config.start_minutes
    if asked.alive:
        started, ready, alive = (_get(service, path) for path in (asked.started, asked.ready, asked.alive))
    else:
        started = ready = _exec(*is_ready(STATUS_FILE))
        alive = _exec(*is_alive(STATUS_FILE, SILENT_SECONDS))
    return {
        "startupProbe": _every(started, failures=minutes * 60 // PERIOD),
        "readinessProbe": _every(ready, failures=2),
        "livenessProbe": _every(alive, failures=6),
    }


def _get(service: Service, path: str) -> Value:
    assert isinstance(service.told, GatewayConfig | DashboardConfig), "others speak no HTTP"
    scheme = "HTTPS" if service.told.tls_cert else "HTTP"
    return {"httpGet": {"path": path, "port": service.ports[0].name, "scheme": scheme}}


def _exec(*words: str) -> Value:
    return {"exec": {"command": list(words)}}


def _every(probe: Value, failures: int) -> Value:
    return {**probe, "periodSeconds": PERIOD, "timeoutSeconds": PATIENCE, "failureThreshold": failures}
