"""Requests of all kinds together, preempted, handed over and begun again, are answered as each is alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.grammars.answering import random_model
from tests.engine.mixtures import Mixture
from tests.engine.test_golden import make_engine


@pytest.mark.parametrize(("backend", "depth", "window"), [("native", 1, 0), ("torch", 2, 0), ("native", 2, 19)])
def test_a_crowd_is_answered_as_each_of_it_alone(backend: str, depth: int, window: int, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", window=window)
    engines = [replace(make_engine(model, cpu_backend=backend, block_size=8), launch_depth=depth) for _ in range(2)]
    assert [bool(group.window) for group in engines[0].pool.spec.groups] == [False, *[True] * bool(window)]
    mixture = Mixture((engines[0], engines[1]), model)
    assert not mixture.wrong(seed=1, count=24)
    for met in ("preempted", "forks", "found in the cache", "scored", "prompts scored", "handed over with a grammar"):
        assert mixture.seen[met] > 0, met
