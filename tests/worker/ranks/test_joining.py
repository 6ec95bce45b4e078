"""Sums over ranks have a fixed order on a CPU, and on GPUs where that is asked for."""

import pytest

from engine.parallel.distributed import DistributedBackend
from infra.config.engine import EngineConfig
from worker.ranks.joining import meeting


@pytest.mark.parametrize(
    ("backend", "asked", "deterministic"),
    [("nccl", False, False), ("nccl", True, True), ("gloo", False, True), ("gloo", True, True)],
)
def test_sums_are_deterministic_where_asked_for_and_on_a_cpu(
    backend: DistributedBackend, asked: bool, deterministic: bool
) -> None:
    made = meeting("/d", backend, EngineConfig(model="m", deterministic=asked))
    assert (made.path, made.backend, made.deterministic) == ("/d/meeting", backend, deterministic)
