"""Requests of all kinds together, preempted, handed over and begun again, are answered as each is alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

from tests.engine.grammars.answering import random_model
from tests.engine.mixtures import Mixture
from tests.engine.speculation.heads import build_head
from tests.engine.speculation.medusa_heads import build_heads
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


@pytest.mark.parametrize(("backend", "depth", "window"), [("native", 1, 0), ("torch", 2, 19)])
def test_guesses_of_a_random_head_change_no_answer(backend: str, depth: int, window: int, tmp_path: Path) -> None:
    """Its KV is in shared blocks, is handed over, and found again; with a window, it is a KV group of its own."""
    model = random_model(tmp_path / "model", window=window)
    build_head(tmp_path / "head", AutoConfig.from_pretrained(model), kv_heads=4 if window else 0)
    own = dict(speculation="eagle", eagle=str(tmp_path / "head"))
    made = [make_engine(model, cpu_backend=backend, block_size=8, **options) for options in (own, own, {})]
    assert [len(engine.pool.spec.groups) for engine in made] == ([3, 3, 2] if window else [1, 1, 1])
    engines = [replace(engine, launch_depth=depth) for engine in made]
    mixture = Mixture((engines[0], engines[1]), model, alone=engines[2])
    assert not mixture.wrong(seed=3, count=16, guesses=3)
    for met in ("preempted", "forks", "found in the cache", "handed over with a grammar", "guesses", "right guesses"):
        assert mixture.seen[met] > 0, met


@pytest.mark.parametrize(
    ("backend", "depth", "window", "kv_dtype"),
    [("native", 2, 0, "auto"), ("torch", 1, 19, "auto"), ("native", 1, 0, "int8")],
)
def test_guesses_that_branch_change_no_answer(
    backend: str, depth: int, window: int, kv_dtype: str, tmp_path: Path
) -> None:
    """Ways of each rank and depth come true now and then, and what was stored for them moves."""
    model = random_model(tmp_path / "model", window=window)
    build_heads(tmp_path / "heads", 3, 1)
    own = dict(speculation="medusa", medusa=str(tmp_path / "heads"))
    settings = dict(cpu_backend=backend, block_size=8, kv_dtype=kv_dtype)
    engines = [replace(make_engine(model, **settings, **options), launch_depth=depth) for options in (own, own, {})]
    mixture = Mixture((engines[0], engines[1]), model, alone=engines[2])
    assert not mixture.wrong(seed=3, count=16, guesses=8, prompting=True)
    for met in ("preempted", "forks", "found in the cache", "scored", "handed over with a grammar", "moved"):
        assert mixture.seen[met] > 0, met
