"""Requests of all kinds together, preempted, handed over and begun again, are answered as each is alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.grammars.answering import random_model
from tests.engine.mixtures import Mixture
from tests.engine.test_golden import make_engine


@pytest.mark.parametrize(
    ("backend", "depth", "window", "kv_dtype"),
    [
        ("native", 1, 0, "auto"),
        ("torch", 2, 0, "auto"),
        ("native", 2, 19, "auto"),
        ("native", 1, 0, "int8"),
        ("native", 2, 19, "fp8"),
    ],
)
def test_a_crowd_is_answered_as_each_of_it_alone(
    backend: str, depth: int, window: int, kv_dtype: str, tmp_path: Path
) -> None:
    """What was preempted is computed again, in other chunks, and branches share blocks: quantized KV is the same."""
    model = random_model(tmp_path / "model", window=window)
    made = (make_engine(model, cpu_backend=backend, block_size=8, kv_dtype=kv_dtype) for _ in range(2))
    engines = [replace(engine, launch_depth=depth) for engine in made]
    assert all(engine.pool.spec.dtype == {"auto": "fp32"}.get(kv_dtype, kv_dtype) for engine in engines)
    assert [bool(group.window) for group in engines[0].pool.spec.groups] == [False, *[True] * bool(window)]
    mixture = Mixture((engines[0], engines[1]), model)
    assert not mixture.wrong(seed=1, count=24)
    for met in ("preempted", "forks", "found in the cache", "scored", "prompts scored", "handed over with a grammar"):
        assert mixture.seen[met] > 0, met
