"""Workers fill the GPUs that the user offers, and then nothing grows unless the user says how far."""

from typing import Any

import pytest
import yaml

from checkpoints.model_size import TYPICAL_SIZE
from launcher.commands.manifests import print_manifests
from launcher.devices.worker_counts import expected_split

WORKERS = ("baton-prefill", "baton-decode")
UNSPLIT = "note: one GPU: a decode worker serves whole requests, because each worker takes a GPU of its own\n"


@pytest.mark.parametrize(
    ("words", "prefill", "decode", "note", "scaled"),
    [
        ((), 1, 1, "", {"baton-prefill": 4, "baton-decode": 4}),
        (("--decode", "3"), 1, 3, "", {"baton-prefill": 4, "baton-decode": 4}),
        (("--gpus", "1"), 0, 1, UNSPLIT, {}),
        (("--gpus", "2"), 1, 1, "note: 2 GPUs: 1 prefill worker and 1 decode worker, each on a GPU", {}),
        (("--gpus", "8", "--prefill", "5"), 5, 3, "note: 8 GPUs: 5 prefill workers and 3 decode workers", {}),
        (("--gpus", "4", "--prefill", "1", "--decode", "1"), 1, 1, "; 2 GPUs without work\n", {}),
        (("--gpus", "4", "--prefill", "1", "--max-decode", "9"), 1, 3, "note: 4 GPUs", {"baton-decode": 9}),
    ],
)
def test_each_gpu_has_one_worker(
    words: tuple[str, ...],
    prefill: int,
    decode: int,
    note: str,
    scaled: dict[str, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert print_manifests(words) == 0
    out, err = capsys.readouterr()
    written = list(yaml.safe_load_all(out))
    specs: dict[str, dict[str, Any]] = {"Deployment": {}, "HorizontalPodAutoscaler": {}}
    for each in written:
        if each["kind"] in specs:
            specs[each["kind"]][each["metadata"]["name"]] = each["spec"]
    pods, autoscalers = specs.values()
    found = [pods[name].get("replicas") or autoscalers[name]["minReplicas"] for name in WORKERS if name in pods]
    assert found == [count for count in (prefill, decode) if count]
    assert {name: spec["maxReplicas"] for name, spec in autoscalers.items()} == scaled
    assert note in err and ("GPU" in err) is bool(note)


@pytest.mark.parametrize("name", ["L4", "H200"])
def test_many_gpus_are_divided_by_their_rates(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_manifests(["--gpus", "16", "--gpu-name", name, "--model", "owner/model"]) == 0
    prefill, decode = expected_split(name, TYPICAL_SIZE, 16)
    assert f"16 GPUs: {prefill} prefill workers and {decode} decode workers, each on" in capsys.readouterr().err


def test_the_rates_of_gpus_matter() -> None:
    assert expected_split("L4", TYPICAL_SIZE, 16) != expected_split("H200", TYPICAL_SIZE, 16)
