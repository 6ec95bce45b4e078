"""Makes the startup, readiness and liveness probes of a service, which use its HTTP port or its status file."""

from infra.config.dashboard import DashboardConfig
from infra.config.gateway import GatewayConfig
from launcher.containers.container import STATUS_FILE, is_alive, is_ready
from launcher.containers.yaml_text import Value
from launcher.deployment import Service
from launcher.kubernetes.options import ManifestsConfig

PROBE_PERIOD_S = 5
PROBE_TIMEOUT_S = 5
MAX_SILENCE_S = 30  # age of the status file at which a worker counts as hung and is restarted
GATEWAY_START_MINUTES = 10  # a gateway may have to download a tokenizer


def probes(config: ManifestsConfig, service: Service) -> Value:
    paths = service.probes
    minutes = GATEWAY_START_MINUTES if service.role in ("gateway", "dashboard") else config.start_minutes
    if paths.alive:
        started, ready, alive = (_get(service, path) for path in (paths.started, paths.ready, paths.alive))
    else:
        started = ready = _exec(*is_ready(STATUS_FILE))
        alive = _exec(*is_alive(STATUS_FILE, MAX_SILENCE_S))
    return {
        "startupProbe": _with_thresholds(started, failures=minutes * 60 // PROBE_PERIOD_S),
        "readinessProbe": _with_thresholds(ready, failures=2),
        "livenessProbe": _with_thresholds(alive, failures=6),
    }


def _get(service: Service, path: str) -> Value:
    assert isinstance(service.settings, GatewayConfig | DashboardConfig), "workers and Redis have no HTTP port"
    scheme = "HTTPS" if service.settings.tls_cert else "HTTP"
    return {"httpGet": {"path": path, "port": service.ports[0].name, "scheme": scheme}}


def _exec(*words: str) -> Value:
    return {"exec": {"command": list(words)}}


def _with_thresholds(probe: Value, failures: int) -> Value:
    return {**probe, "periodSeconds": PROBE_PERIOD_S, "timeoutSeconds": PROBE_TIMEOUT_S, "failureThreshold": failures}
