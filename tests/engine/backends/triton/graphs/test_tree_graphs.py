"""Recorded steps that verify trees of draft tokens give the states of steps that are not recorded."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.backends.base import StepSizes
from engine.backends.triton.graphs.decode_graphs import DecodeGraphs
from engine.executor import Executor
from engine.plan import StepPlan, Work
from engine.start.load import LoadedEngine
from tests.engine.drive import GREEDY
from tests.engine.test_golden import make_engine
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS

pytestmark = pytest.mark.interpreted
TREE = (-1, -1, 0, 1, 1, 0, 4, 4, 6)
SMALL_TREE = (-1, -1, 0)
PROMPT_LENGTHS = (13, 5, 20)


def loaded(variant: str, directory: Path) -> LoadedEngine:
    config = VARIANTS[variant]()
    config.num_hidden_layers = 2
    build_model(directory / "model", config)
    return make_engine(directory / "model", cpu_backend="triton", decode_graphs="off", block_size=8, max_sequences=3)


def recording(engine: LoadedEngine, draft_tokens: int) -> DecodeGraphs:
    steps = engine.backend.decode_steps(
        engine.model,
        engine.model_config,
        engine.pool.layers,
        StepSizes(3, draft_tokens, trees=True),
        lambda stage, percent: None,
    )
    assert isinstance(steps, DecodeGraphs)
    return steps


def decode(text: int, start: int, parents: tuple[int, ...], drafts: int, groups: int) -> Work:
    tokens = make_prompts([1 + drafts], 300, seed=start)[0]
    tables = ([*range(1 + 8 * text, 9 + 8 * text)],) * groups
    return Work(text, start, tokens, tables, GREEDY, proposed=tuple(tokens[1:]), parents=parents)


@pytest.mark.parametrize("variant", ["llama", "deepseek-v3"])
def test_recorded_trees_give_the_same_states(variant: str, tmp_path: Path) -> None:
    """Beside chains, and texts without draft tokens; a small tree takes the smaller recording."""
    engine = loaded(variant, tmp_path)
    steps, groups = recording(engine, len(TREE)), len(engine.pool.counts)
    plain, recorded = Executor(engine), Executor(replace(engine, decode_steps=steps))
    tables = [([*range(1 + 8 * text, 9 + 8 * text)],) * groups for text in range(3)]
    prompts = make_prompts(list(PROMPT_LENGTHS), 300)
    plain.launch(StepPlan(0, [Work(at, 0, text, tables[at], GREEDY) for at, text in enumerate(prompts)]))
    plain.collect()
    drafts: list[list[tuple[tuple[int, ...], int]]] = [
        [((), 0), (TREE, 9), ((), 2)],
        [(SMALL_TREE, 3), (TREE, 9), (TREE, 9)],
        [(SMALL_TREE, 3), ((), 0), ((), 7)],
        [(TREE, 9)],
    ]
    for step, of_texts in enumerate(drafts):
        works = [
            decode(at, PROMPT_LENGTHS[at] + step, parents, count, groups)
            for at, (parents, count) in enumerate(of_texts)
        ]
        plan = StepPlan(1 + step, works[::-1])
        assert steps.serves(plan)
        with torch.inference_mode():
            states = [executor._logits(plan, None, executor._is_recorded(plan)) for executor in (plain, recorded)]
        (expected, _, _), (found, _, _) = states
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_trees_that_may_be_deeper_than_a_window_are_not_recorded(tmp_path: Path) -> None:
    engine = loaded("mistral-window", tmp_path)
    groups, window = len(engine.pool.counts), engine.pool.spec.groups[-1].window
    for draft_tokens in (window - 1, window):
        steps = recording(engine, draft_tokens)
        chain, branching = (StepPlan(0, [decode(0, 5, parents, 2, groups)]) for parents in ((), (-1, -1)))
        assert steps.serves(chain)
        assert steps.serves(branching) == (draft_tokens < window)
