"""Makes the workers' HorizontalPodAutoscalers, and prometheus-adapter's rules for the metrics that they use.

Each gateway reports the state of the workers that it sees (`/metrics`); a rule combines the gateways' values into one
metric of their Service. An autoscaler follows the metric that asks for most pods, adds or removes one pod in a period,
and stops a pod by SIGTERM, on which the worker drains.
"""

from msgspec import Struct
from msgspec.structs import replace

from contracts.slo import parse_objective
from infra.config.gateway import GatewayConfig
from launcher.containers.yaml_text import Value, as_yaml
from launcher.deployment import WORKERS, Role, Service
from launcher.kubernetes.names import metadata, name_of
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.quantities import decimal

OBJECTIVE_SHARE = 0.5
"""A worker is added when the predicted latency exceeds this share of the objective: it starts before a miss."""
USED_BLOCKS_SHARE = 0.8
"""A decode worker is added when more than this share of the KV blocks is in use."""
BUSY_SHARE = 0.8
"""A prefill worker is added when workers compute for more than this share of the time; rejected prompts count."""
ADD_PERIOD_S, REMOVE_PERIOD_S = 60, 120
"""At most one pod is added, or removed, in such a period."""
REMOVE_STABILIZATION_S = 600
"""A pod is removed after every metric has asked for fewer pods for this time."""
MAX_PREDICTION_S = 3600
"""Stands for an infinite prediction: quantities of Kubernetes have no infinity."""


class ScalingMetric(Struct, frozen=True):
    """A metric of the gateways that an autoscaler follows."""

    series: str  # name in the gateways' /metrics
    role: Role
    each: bool = False  # divided by the number of pods
    added: bool = False  # each gateway counts its own requests, so the sum is meant; else the maximum

    @property
    def name(self) -> str:
        return f"{self.series.replace(':', '_')}_{self.role}"


PREDICTED_TTFT = ScalingMetric("baton:predicted_ttft_seconds", "prefill")
QUEUED_TOKENS = ScalingMetric("baton:queued_prefill_tokens", "prefill", each=True)
BUSY_WORKERS = ScalingMetric("baton:prompt_busy_workers", "prefill", each=True, added=True)
PREDICTED_TPOT = ScalingMetric("baton:predicted_tpot_seconds", "decode")
USED_BLOCKS = ScalingMetric("baton:used_blocks_ratio", "decode")
SCALING_METRICS = (PREDICTED_TTFT, QUEUED_TOKENS, BUSY_WORKERS, PREDICTED_TPOT, USED_BLOCKS)


def is_autoscaled(config: ManifestsConfig, service: Service) -> bool:
    return service.role in WORKERS and bool(_max_pods(config, service.role))


def _max_pods(config: ManifestsConfig, role: Role) -> int | None:
    return config.max_prefill if role == "prefill" else config.max_decode


def targets(config: ManifestsConfig) -> dict[ScalingMetric, float]:
    """Returns the value of each metric above which a worker is added."""
    objective = parse_objective(config.slo)
    usual = GatewayConfig(model=config.model)
    return {
        PREDICTED_TTFT: OBJECTIVE_SHARE * (objective.ttft_ms or usual.slo_ttft_ms) / 1000,
        QUEUED_TOKENS: config.queued_tokens,
        BUSY_WORKERS: BUSY_SHARE,
        PREDICTED_TPOT: OBJECTIVE_SHARE * (objective.tpot_ms or usual.slo_tpot_ms) / 1000,
        USED_BLOCKS: USED_BLOCKS_SHARE,
    }


def autoscaler(config: ManifestsConfig, service: Service) -> Value:
    gateways = {"apiVersion": "v1", "kind": "Service", "name": name_of(config, "gateway")}
    metrics = []
    for metric, target in targets(config).items():
        if metric.role == service.role:
            kind, key = ("AverageValue", "averageValue") if metric.each else ("Value", "value")
            wanted = {"type": kind, key: decimal(target)}
            asked = {"metric": {"name": metric.name}, "describedObject": gateways, "target": wanted}
            metrics.append({"type": "Object", "object": asked})
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(config, service.role, service.role),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name_of(config, service.role)},
            "minReplicas": service.replicas,
            "maxReplicas": _max_pods(config, service.role),
            "metrics": metrics,
            "behavior": {
                "scaleUp": _one_pod(ADD_PERIOD_S, stabilization=0),
                "scaleDown": _one_pod(REMOVE_PERIOD_S, stabilization=REMOVE_STABILIZATION_S),
            },
        },
    }


def _one_pod(period: int, stabilization: int) -> Value:
    return {
        "stabilizationWindowSeconds": stabilization,
        "selectPolicy": "Min",
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": period}],
    }


def adapter_rules(config: ManifestsConfig) -> Value:
    """Makes the ConfigMap with prometheus-adapter's rules; the chart's value `rules.existing` names it."""
    there = replace(config, namespace=config.adapter_namespace or config.namespace)
    rules = [_rule(metric) for metric in SCALING_METRICS]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(there, "adapter-rules"),
        "data": {"config.yaml": as_yaml([{"rules": rules}])},
    }


def _rule(metric: ScalingMetric) -> Value:
    """Makes the rule of one metric: the sum or the maximum over the gateways of a Service.

    The maximum, because a gateway that does not see a worker reports too little.
    """
    role = f'role="{metric.role}"'
    series = f"<<.Series>>{{<<.LabelMatchers>>,{role}}}"
    combined = f"{'sum' if metric.added else 'max'}({series}) by (<<.GroupBy>>)"
    return {
        "seriesQuery": f'{metric.series}{{{role},namespace!="",service!=""}}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}, "service": {"resource": "service"}}},
        "name": {"matches": "^.*$", "as": metric.name},
        "metricsQuery": combined if metric.each else f"clamp_max({combined}, {MAX_PREDICTION_S})",
    }
