"""The manifests keep to Kubernetes' own schemas, strictly: no field that is unknown, none of another type."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from launcher.commands.manifests import print_manifests
from launcher.containers.yaml_text import as_yaml
from tests.launcher.kubernetes.written import VARIANTS, variants, written

VERSIONS = ("1.34", "1.35", "1.36", "1.37")
"""Those that get fixes when this is written."""
CUSTOM = {"ServiceMonitor", "PrometheusRule", "HTTPRoute"}
"""Kinds of operators, which Kubernetes' schemas do not have: see `test_monitoring.py` and `test_ingress.py`."""


@pytest.mark.parametrize(
    ("variant", "version"),
    [*((variant, VERSIONS[-1]) for variant in VARIANTS), *(("secured", version) for version in VERSIONS[:-1])],
)
def test_manifests_keep_to_the_schemas(variant: str, version: str, tmp_path: Path) -> None:
    for each in written(variant, tmp_path):
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, version, strict=True)


@variants
def test_yaml_says_what_was_meant(variant: str, tmp_path: Path) -> None:
    made = written(variant, tmp_path)
    assert list(yaml.safe_load_all(as_yaml(made))) == made


def test_the_command_prints_the_same_each_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    printed = []
    for _ in range(2):
        named = ["--secret-file", str(secret), "--name", "mine", "--model", "a/b", "--image", "here/b:1"]
        named.append("--decode=2")
        assert print_manifests(named) == 0
        out, err = capsys.readouterr()
        printed.append(out)
        assert err == ""
    assert printed[0] == printed[1]
    assert {each["metadata"]["name"].partition("-")[0] for each in yaml.safe_load_all(printed[0])} == {"mine"}


def test_a_new_secret_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    secrets = []
    for _ in range(2):
        assert print_manifests(["--image", "here/b:1", "--worker-surge=1"]) == 0
        out, err = capsys.readouterr()
        assert err.startswith("note: the Secret has a new secret") and err.count("\n") == 1
        secrets.append(next(yaml.safe_load_all(out))["stringData"]["secret"])
    assert secrets[0] != secrets[1] and len(secrets[0]) == 64


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prefill=1"], "prefill workers answer alone, slower, until"),
        (["--prefill=0"], "nothing answers until"),
        (["--device=cpu"], ""),
        (["--decode=2"], ""),
    ],
)
def test_a_single_decode_worker_that_stops_before_the_next_starts_is_noted(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_manifests(["--image=here/b:1", "--existing-secret=a", *words]) == 0
    err = capsys.readouterr().err
    assert ("--decode 1: during a roll-out " in err and said in err) if said else err == ""


@pytest.mark.parametrize(("model", "kept"), [("owner/name", True), ("/models/mine", False)])
def test_compiled_kernels_outlive_a_pod_where_the_volume_can_be_written(
    model: str, kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_manifests(["--image", "here/b:1", "--model", model]) == 0
    written = list(yaml.safe_load_all(capsys.readouterr().out))
    (worker,) = [each for each in written if (each["kind"], each["metadata"]["name"]) == ("Deployment", "baton-decode")]
    mounts = worker["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    (models,) = [mount for mount in mounts if mount["name"] == "models"]
    told = {name: value for each in written if each["kind"] == "ConfigMap" for name, value in each["data"].items()}
    assert models["readOnly"] is not kept
    assert told.get("TRITON_CACHE_DIR", "").startswith(f"{models['mountPath']}/") is kept
