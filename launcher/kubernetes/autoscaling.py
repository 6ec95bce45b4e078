"""Makes the workers' HorizontalPodAutoscalers, and the rules by which prometheus-adapter gives them their figures.

Gateways report how the workers of each role stand (`/metrics`), each as it sees them; the rules make one figure of
that for the gateways' Service. An autoscaler takes the figure that asks for most pods. It adds and removes one pod in a
period, and a pod that goes is told to stop first: that is its drain.
"""

from msgspec import Struct

from contracts.slo import parse_objective
from infra.config.gateway import GatewayConfig
from launcher.deployment import WORKERS, Role, Service
from launcher.kubernetes.names import metadata, name_of
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.quantities import decimal
from launcher.yaml_text import Value, as_yaml

SHARE = 0.5
"""Of the objective: the predicted time at which one more worker is started, so that it is there before it is missed."""
BLOCKS = 0.8
"""Share of the KV blocks in use at which one more decode worker is started; less than a fifth is free then."""
BUSY_SHARE = 0.8
"""Share of its time that a prefill worker may compute; prompts that are refused count, which no other figure sees."""
UP_SECONDS, DOWN_SECONDS = 60, 120
"""Periods in which at most one pod is added, or removed."""
CALM_SECONDS = 600
"""For so long every figure has to have asked for fewer pods before one is removed."""
MOST = 3600
"""What an infinite prediction counts as, in seconds: Kubernetes' quantities have no infinity."""


class Figure(Struct, frozen=True):
    """Describes a figure that an autoscaler goes by."""

    series: str  # as gateways call it
    role: Role
    each: bool = False  # it is divided among the pods
    added: bool = False  # it is what comes to one gateway, so that those of all are added up

    @property
    def name(self) -> str:
        """Returns what the custom metrics API calls it."""
        return f"{self.series.replace(':', '_')}_{self.role}"


TTFT = Figure("baton:predicted_ttft_seconds", "prefill")
QUEUED = Figure("baton:queued_prefill_tokens", "prefill", each=True)
BUSY = Figure("baton:prompt_busy_workers", "prefill", each=True, added=True)
TPOT = Figure("baton:predicted_tpot_seconds", "decode")
USED = Figure("baton:used_blocks_ratio", "decode")
FIGURES = (TTFT, QUEUED, BUSY, TPOT, USED)


def scales(config: ManifestsConfig, service: Service) -> bool:
    """Tells whether an autoscaler decides how many pods a service has."""
    return service.role in WORKERS and bool(_most(config, service.role))


def _most(config: ManifestsConfig, role: Role) -> int:
    return config.max_prefill if role == "prefill" else config.max_decode


def targets(config: ManifestsConfig) -> dict[Figure, float]:
    """Returns the value of each figure from which on one more worker is wanted."""
    asked = parse_objective(config.slo)
    usual = GatewayConfig(model=config.model)
    return {
        TTFT: SHARE * (asked.ttft_ms or usual.slo_ttft_ms) / 1000,
        QUEUED: config.queued_tokens,
        BUSY: BUSY_SHARE,
        TPOT: SHARE * (asked.tpot_ms or usual.slo_tpot_ms) / 1000,
        USED: BLOCKS,
    }


def autoscaler(config: ManifestsConfig, service: Service) -> Value:
    """Makes the autoscaler of one role's workers."""
    gateways = {"apiVersion": "v1", "kind": "Service", "name": name_of(config, "gateway")}
    metrics = []
    for figure, target in targets(config).items():
        if figure.role == service.role:
            kind, key = ("AverageValue", "averageValue") if figure.each else ("Value", "value")
            wanted = {"type": kind, key: decimal(target)}
            asked = {"metric": {"name": figure.name}, "describedObject": gateways, "target": wanted}
            metrics.append({"type": "Object", "object": asked})
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(config, service.role, service.role),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name_of(config, service.role)},
            "minReplicas": service.replicas,
            "maxReplicas": _most(config, service.role),
            "metrics": metrics,
            "behavior": {
                "scaleUp": _one_pod(UP_SECONDS, calm=0),
                "scaleDown": _one_pod(DOWN_SECONDS, calm=CALM_SECONDS),
            },
        },
    }


def _one_pod(period: int, calm: int) -> Value:
    return {
        "stabilizationWindowSeconds": calm,
        "selectPolicy": "Min",
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": period}],
    }


def adapter_rules(config: ManifestsConfig) -> Value:
    """Makes the ConfigMap with prometheus-adapter's rules: its chart takes it by name (`rules.existing`)."""
    rules = [_rule(figure) for figure in FIGURES]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(config, "adapter-rules"),
        "data": {"config.yaml": as_yaml([{"rules": rules}])},
    }


def _rule(figure: Figure) -> Value:
    """Makes one rule: of what the gateways of a Service say, the largest, for what one does not see it cannot say.

    What comes to each of them alone is added up.
    """
    role = f'role="{figure.role}"'
    series = f"<<.Series>>{{<<.LabelMatchers>>,{role}}}"
    together = f"{'sum' if figure.added else 'max'}({series}) by (<<.GroupBy>>)"
    return {
        "seriesQuery": f'{figure.series}{{{role},namespace!="",service!=""}}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}, "service": {"resource": "service"}}},
        "name": {"matches": "^.*$", "as": figure.name},
        "metricsQuery": together if figure.each else f"clamp_max({together}, {MOST})",
    }
