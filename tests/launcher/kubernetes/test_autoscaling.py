"""Autoscalers go by figures that gateways report, one pod at a time, and rules say what each figure is."""

from pathlib import Path

import yaml

from gateway.metrics.role_metrics import RoleMetrics
from launcher.kubernetes.objects.autoscaling import SCALING_METRICS, USED_BLOCKS, targets
from launcher.kubernetes.options import ManifestsConfig
from pricing.scaling.standing import RoleStanding, Standing, WorkerStanding
from tests.launcher.kubernetes.written import Manifest, of_kind, written


def rules(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The rules for prometheus-adapter, by the name that the metrics API has for what they give."""
    text = of_kind(manifests, "ConfigMap")["qwen-adapter-rules"]["data"]["config.yaml"]
    return {rule["name"]["as"]: rule for rule in yaml.safe_load(text)["rules"]}


def test_each_worker_role_has_an_autoscaler_and_no_fixed_number(tmp_path: Path) -> None:
    made = written("hub", tmp_path)
    scalers = of_kind(made, "HorizontalPodAutoscaler")
    assert set(scalers) == {"qwen-prefill", "qwen-decode"}
    for name, deployment in of_kind(made, "Deployment").items():
        assert ("replicas" in deployment["spec"]) == (name not in scalers), "or each apply undoes the autoscaler's work"
    prefill = scalers["qwen-prefill"]["spec"]
    assert (prefill["minReplicas"], prefill["maxReplicas"]) == (2, 4)
    assert of_kind(written("cpu", tmp_path), "HorizontalPodAutoscaler") == {}


def test_one_pod_changes_in_a_period(tmp_path: Path) -> None:
    for scaler in of_kind(written("hub", tmp_path), "HorizontalPodAutoscaler").values():
        for way in ("scaleUp", "scaleDown"):
            behavior = scaler["spec"]["behavior"][way]
            ((policy,), select) = behavior["policies"], behavior["selectPolicy"]
            assert (policy["type"], policy["value"], select) == ("Pods", 1, "Min")
            assert policy["periodSeconds"] >= 60
        down = scaler["spec"]["behavior"]["scaleDown"]
        assert down["stabilizationWindowSeconds"] > down["policies"][0]["periodSeconds"]


def test_autoscalers_ask_for_what_the_rules_give_of_the_gateways(tmp_path: Path) -> None:
    made = written("hub", tmp_path)
    given = rules(made)
    asked = []
    for name, scaler in of_kind(made, "HorizontalPodAutoscaler").items():
        for metric in scaler["spec"]["metrics"]:
            assert metric["object"]["describedObject"]["name"] in of_kind(made, "Service")
            asked.append(metric["object"]["metric"]["name"])
            assert f'role="{name.removeprefix("qwen-")}"' in given[asked[-1]]["seriesQuery"]
    assert sorted(asked) == sorted(given)


def test_only_what_comes_to_each_gateway_alone_is_added_up(tmp_path: Path) -> None:
    queries = {name: rule["metricsQuery"] for name, rule in rules(written("hub", tmp_path)).items()}
    added = [name for name, query in queries.items() if query.startswith("sum(")]
    assert added == ["baton_prompt_busy_workers_prefill"]
    assert all(query.startswith(("max(", "clamp_max(max(")) for name, query in queries.items() if name not in added)


def test_the_figures_are_ones_that_gateways_report() -> None:
    worker = WorkerStanding("w", ttft=0.5, ttft_alone=0.1, tpot=0.02, tpot_alone=0.01, blocks=10, free_blocks=1)
    reported = RoleMetrics("m")
    reported.standing = Standing(*[RoleStanding((worker,), usual_tokens=10.0)] * 2)
    collected = [*reported.own.collect(), *reported.of_workers.collect()]
    families = {family.name: family for family in collected}
    for figure in SCALING_METRICS:
        samples = {sample.labels["role"]: sample.value for sample in families[figure.series].samples}
        assert figure.role in samples
    assert {sample.value for sample in families[USED_BLOCKS.series].samples} == {0.9}


def test_the_objective_decides_when_one_more_is_wanted() -> None:
    from_slo = targets(ManifestsConfig(model="a/b", slo="ttft=1s"))
    assert {figure.name: target for figure, target in from_slo.items()} == {
        "baton_predicted_ttft_seconds_prefill": 0.5,
        "baton_queued_prefill_tokens_prefill": 16_384,
        "baton_prompt_busy_workers_prefill": 0.8,
        "baton_predicted_tpot_seconds_decode": 0.05,
        "baton_used_blocks_ratio_decode": 0.8,
    }
