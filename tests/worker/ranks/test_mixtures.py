"""Requests of all kinds together are answered by workers of several ranks as each is alone by a worker of one rank."""

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

from tests.engine.grammars.answering import random_model
from tests.engine.mixtures import MAX_ERROR, Mixture
from tests.engine.speculation.heads import build_head
from tests.engine.speculation.medusa_heads import build_heads
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
        error = MAX_ERROR if kv_dtype == "auto" else FP8_ERROR
        mixture = Mixture((engines[0], engines[1]), model, alone=make_engine(model, **settings), error=error)
        assert not mixture.wrong(seed=1, count=16, guesses=guesses)
    met = ["preempted", "forks", "found in the cache", "scored", "prompts scored", "handed over with a grammar"]
    for kind in [*met, *["guesses", "right guesses"] * bool(guesses)]:
        assert mixture.seen[kind] > 0, kind


@pytest.mark.parametrize(
    ("drafts", "backend", "prefill", "decode", "window"),
    [
        ("eagle", "native", 2, 4, 0),
        ("eagle", "torch", 1, 2, 19),
        ("medusa", "native", 1, 2, 0),
        ("draft", "native", 2, 2, 0),
    ],
)
def test_drafts_change_no_answer(
    drafts: str, backend: str, prefill: int, decode: int, window: int, tmp_path: Path
) -> None:
    """A head's KV is cut as the model's; drafts that branch move KV on all ranks; a draft model is rank 0's alone."""
    model = random_model(tmp_path / "model", window=window)
    if drafts == "eagle":
        build_head(tmp_path / "drafts", AutoConfig.from_pretrained(model), kv_heads=4 if window else 0)
    elif drafts == "medusa":
        build_heads(tmp_path / "drafts", 3, 1)
    else:  # its drafts are right, as far as nothing but logits decides
        shutil.copytree(model, tmp_path / "drafts")
    settings: dict[str, object] = dict(cpu_backend=backend, block_size=8)
    own = settings | {"speculation": drafts, "draft_model" if drafts == "draft" else drafts: str(tmp_path / "drafts")}
    with ExitStack() as stack:
        engines = [
            stack.enter_context(engine_of_ranks(model, ranks, **own)).engine if ranks > 1 else make_engine(model, **own)
            for ranks in (prefill, decode)
        ]
        pair = [replace(engine, launch_depth=2) for engine in engines]
        mixture = Mixture((pair[0], pair[1]), model, alone=make_engine(model, **settings))
        prompting = drafts == "medusa"
        assert not mixture.wrong(seed=3, count=12, guesses=8 if prompting else 3, prompting=prompting)
    met = ["preempted", "found in the cache", "guesses", "right guesses", *["moved"] * (drafts == "medusa")]
    assert not [kind for kind in met if not mixture.seen[kind]]
