"""Pods run where, and with what, the options say."""

from pathlib import Path

from tests.launcher.kubernetes.written import of_kind, options, pod_specs, variants, written

WORKERS = ("-prefill", "-decode")


def test_workers_have_nodes_and_a_runtime_and_all_pods_a_priority(tmp_path: Path) -> None:
    made = written("hub", tmp_path)
    for name, spec in pod_specs(made):
        worker = name.endswith(WORKERS)
        assert spec.get("nodeSelector") == ({"gpu": "l4", "pool": "serving"} if worker else None)
        assert spec.get("runtimeClassName") == ("nvidia" if worker else None)
        assert spec["priorityClassName"] == "high"
    settings = of_kind(made, "ConfigMap")["qwen-settings"]["data"]
    assert (settings["NCCL_DEBUG"], settings["EMPTY"]) == ("INFO", "")


def test_models_on_the_nodes_disks_need_no_claim(tmp_path: Path) -> None:
    made = written("hub", tmp_path)
    assert of_kind(made, "PersistentVolumeClaim") == {}
    for name, spec in pod_specs(made):
        held = [volume for volume in spec.get("volumes", ()) if volume["name"] == "models"]
        downloads = name.endswith((*WORKERS, "-gateway"))
        assert held == ([{"name": "models", "emptyDir": {"sizeLimit": "200Gi"}}] if downloads else [])


@variants
def test_what_a_pod_writes_is_bounded(variant: str, tmp_path: Path) -> None:
    bound = {"hub": "1Gi"}.get(variant, "8Gi")
    for _, spec in pod_specs(written(variant, tmp_path)):
        lost = [volume for volume in spec.get("volumes", ()) if "emptyDir" in volume and volume["name"] != "models"]
        assert all(volume["emptyDir"] == {"sizeLimit": bound} for volume in lost)


@variants
def test_the_adapters_rules_are_in_its_namespace(variant: str, tmp_path: Path) -> None:
    config, rules = options(variant, tmp_path), of_kind(written(variant, tmp_path), "ConfigMap")
    for name, each in rules.items():
        wanted = "monitoring" if variant == "hub" and name.endswith("-adapter-rules") else config.namespace
        assert each["metadata"].get("namespace", "") == wanted
