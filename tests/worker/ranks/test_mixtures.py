"""Requests of all kinds together are answered by workers of several ranks as each is alone by a worker of one rank."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.grammars.answering import random_model
from tests.engine.mixtures import ERROR, Mixture
from tests.engine.test_golden import make_engine
from tests.worker.ranks.follower_threads import engine_of_ranks

FP8_ERROR = 0.01
"""Some values are rounded to another fp8 number after sums in another order."""


@pytest.mark.parametrize(
    ("backend", "prefill", "decode", "window", "kv_dtype", "quantization", "guesses"),
    [
        ("torch", 2, 2, 0, "auto", "none", 0),
        ("native", 1, 4, 19, "auto", "none", 3),
        ("native", 2, 1, 0, "auto", "int4", 0),
        ("native", 2, 2, 0, "fp8", "none", 3),
    ],
)
def test_a_crowd_is_answered_as_each_of_it_alone(
    backend: str, prefill: int, decode: int, window: int, kv_dtype: str, quantization: str, guesses: int, tmp_path: Path
) -> None:
    """Samples, penalties, grammars, scores, preemption, shared blocks, windows, and drafts from the text."""
    model = random_model(tmp_path / "model", window=window)
    settings = dict(cpu_backend=backend, block_size=8, kv_dtype=kv_dtype, quantization=quantization)
    with ExitStack() as stack:
        made = [
            stack.enter_context(engine_of_ranks(model, ranks, **settings)).engine
            if ranks > 1
            else make_engine(model, **settings)
            for ranks in (prefill, decode)
        ]
        engines = [replace(engine, launch_depth=2) for engine in made]
        error = ERROR if kv_dtype == "auto" else FP8_ERROR
        mixture = Mixture((engines[0], engines[1]), model, alone=make_engine(model, **settings), error=error)
        assert not mixture.wrong(seed=1, count=16, guesses=guesses)
    met = ["preempted", "forks", "found in the cache", "scored", "prompts scored", "handed over with a grammar"]
    for kind in [*met, *["guesses", "right guesses"] * bool(guesses)]:
        assert mixture.seen[kind] > 0, kind
