"""The benchmark of the dense families measures them all, by operators of ours."""

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.limits.workloads import Workload
from benchmarks.steps import families
from engine.model.config import DenseMLP, ModelConfig
from launcher.stages import StageDisplay

TINY = dict(vocab_size=320, hidden_size=72, intermediate_size=96, num_hidden_layers=2, max_position_embeddings=64)


def test_every_family_is_measured_beside_llama(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(families, "SHAPE", {**families.SHAPE, **TINY})
    given = Namespace(device="cpu", dtype="fp32", rounds=1, threads=1)
    workload = Workload(2, 5, 3)
    monkeypatch.setattr(families, "WORKLOADS", (workload,))
    engines = {}
    for family in families.FAMILIES:
        families.make(tmp_path / family, family)
        engines[family] = families.load(tmp_path / family, given)
        config = engines[family][0].engine.model_config
        assert isinstance(config, ModelConfig) and isinstance(config.layers[0].mlp, DenseMLP), family
    (counted,) = families.rounds_of(workload, engines, 1, StageDisplay())
    assert counted.keys() == families.FAMILIES.keys() and min(counted.values()) > 0
