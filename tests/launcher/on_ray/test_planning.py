"""A deployment's numbers of workers fill a cluster's free GPUs, and a line says so."""

from pathlib import Path
from typing import Any

import pytest

from checkpoints.model_size import TYPICAL_SIZE
from launcher.devices.worker_counts import UNSHARED_NOTE, expected_split
from launcher.on_ray.placement import NodeResources
from launcher.on_ray.planning import with_decided_workers
from launcher.options import RayOptions, UpConfig


def cluster(*free: float, total: float = 8.0, kind: str = "H100") -> dict[str, NodeResources]:
    """Makes nodes from the number of free GPUs of each."""
    every = {"CPU": 64.0, "GPU": total, f"accelerator_type:{kind}": 1.0}
    return {f"n{n}": NodeResources(f"10.0.0.{n}", every, {**every, "GPU": gpus}) for n, gpus in enumerate(free)}


NO_GPUS = {"n": NodeResources("10.0.0.1", {"CPU": 8.0}, {"CPU": 8.0})}


@pytest.mark.parametrize(
    ("nodes", "asked", "counts", "said"),
    [
        (cluster(1.0), {}, (0, 1), UNSHARED_NOTE),
        (cluster(1.0, 1.5), {}, (1, 1), "2 GPUs: 1 prefill worker and 1 decode worker, each on a GPU of its own"),
        (cluster(8.0, 4.0), {"prefill": 5}, (5, 7), "12 GPUs: 5 prefill workers and 7 decode workers"),
        (cluster(4.0), {"decode": 1}, (3, 1), "4 GPUs: 3 prefill workers and 1 decode worker"),
        (cluster(4.0), {"prefill": 1, "decode": 1}, (1, 1), "change the numbers; 2 GPUs without work"),
        (cluster(0.0, total=2.0), {}, (1, 1), "2 GPUs: "),  # refused by their number as soon as they are placed
        (cluster(4.0), {"device": "cpu"}, (1, 1), ""),
        (NO_GPUS, {}, (1, 1), ""),
        (NO_GPUS, {"decode": 3}, (1, 3), ""),
        (cluster(8.0), {"ray": RayOptions(autoscale="decode=1:8")}, (1, 1), ""),
        (cluster(8.0), {"ray": RayOptions(autoscale="decode=1:8"), "decode": 3}, (1, 3), ""),
        (cluster(1.0), {"ray": RayOptions(autoscale="decode=1:8")}, (0, 1), ""),
    ],
)
def test_each_free_gpu_has_one_worker(
    nodes: dict[str, NodeResources], asked: dict[str, Any], counts: tuple[int, int], said: str
) -> None:
    config, notes = with_decided_workers(UpConfig(model="owner/model", **asked), nodes)
    assert (config.prefill, config.decode) == counts
    assert len(notes) == bool(said) and all(said in note for note in notes)
    assert config.device == ("cpu" if asked.get("device") == "cpu" or nodes is NO_GPUS else "cuda")


@pytest.mark.parametrize("kind", ["L4", "H200"])
def test_many_gpus_are_divided_by_their_rates(kind: str) -> None:
    config, _ = with_decided_workers(UpConfig(model="owner/model"), cluster(8.0, 8.0, kind=kind))
    assert (config.prefill, config.decode) == expected_split(kind, TYPICAL_SIZE, 16)


def test_a_models_size_matters(tmp_path: Path) -> None:
    config = UpConfig()
    small, _ = with_decided_workers(config, cluster(8.0, 8.0), Path(config.model))
    assert (small.prefill, small.decode) != expected_split("H100", TYPICAL_SIZE, 16)
