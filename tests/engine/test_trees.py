"""Guesses that branch change no token: what is drawn from their rows is what steps without any give.

The model computes them, by every backend; each step's guesses are right up to a depth of their own.
"""

from itertools import count
from pathlib import Path

import pytest
import torch

from contracts.kv.spec import blocks_for
from engine.executor import Executor
from engine.plan import StepPlan, Work
from tests.engine.drive import GREEDY, run, start
from tests.engine.test_golden import BACKENDS, make_engine
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS

NEW_TOKENS = 20
PROMPT_TOKENS = 130
"""Tokens: guesses straddle two tiles of the native operators, and blocks."""
TREE = (-1, -1, 0, 1, 1, 0, 4, 4, 6)
"""The way of right guesses is 1, 4, 7; three others go on from wrong ones."""
RIGHT_DRAFTS = (1, 4, 7)
CASES = {
    "llama": {},
    "llama in int8": {"kv_dtype": "int8"},
    "mistral-window": {},
    "gemma2": {},
    "gpt-oss": {},
    "deepseek-v3": {},
    "deepseek-v3 in fp8": {"kv_dtype": "fp8"},
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    name = request.param.partition(" ")[0]
    return build_model(tmp_path_factory.mktemp("guesses") / "model", VARIANTS[name]()), CASES[request.param]


def tree(right: list[int], depth: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Guesses that branch, of which so many come."""
    wrong = [(right[0] + 1 + guess) % 300 for guess in range(len(TREE))]
    for at, guess in enumerate(RIGHT_DRAFTS[:depth]):
        wrong[guess] = right[at]
    for guess, parent in enumerate(TREE):  # a sibling never guesses the same, nor right by chance
        siblings = {wrong[other] for other, of in enumerate(TREE) if of == parent and other != guess}
        if guess not in RIGHT_DRAFTS[:depth]:
            wrong[guess] = next(token for token in range(300) if token not in siblings | set(right))
    return tuple(wrong), TREE


@pytest.mark.parametrize("backend", BACKENDS)
def test_guesses_that_branch_change_no_token(backend: str, case: tuple[Path, dict[str, str]]) -> None:
    """Two sequences, one of them with guesses in other steps, beside chunks and decodes."""
    directory, settings = case
    executor = Executor(make_engine(directory, cpu_backend=backend, **settings))
    prompts = make_prompts([PROMPT_TOKENS, 7], 320)
    expected = run(executor, start(executor, prompts, NEW_TOKENS), NEW_TOKENS, chunk=512)
    pool = executor.engine.pool
    block, groups = pool.spec.groups[0].block_tokens, len(pool.spec.groups)
    width = blocks_for(PROMPT_TOKENS + NEW_TOKENS + len(TREE), block)
    tables = [tuple([list(range(1 + at * width, 1 + (at + 1) * width))] * groups) for at in (0, 1)]
    texts, accepted = [list(prompt) for prompt in prompts], 0
    executor.launch(StepPlan(0, [Work(at, 0, text, tables[at], GREEDY) for at, text in enumerate(texts)]))
    for text, tokens in zip(texts, executor.collect().tokens, strict=True):
        text += tokens
    for step in count(1):
        works = []
        for at, text in enumerate(texts):
            done = len(text) - len(prompts[at])
            if done >= NEW_TOKENS:
                continue
            right = expected[at][done : done + 3]
            proposed, parents = tree(right, step % 4) if (step + at) % 5 and len(right) == 3 else ((), ())
            own = Work(
                at,
                len(text) - 1,
                [text[-1], *proposed],
                tables[at],
                GREEDY,
                (0,),
                done,
                proposed=proposed,
                parents=parents,
            )
            works.append(own)
        if not works:
            break
        executor.launch(StepPlan(step, works))
        result = executor.collect()
        for work, tokens in zip(works, result.tokens, strict=True):
            texts[work.sequence] += tokens
            accepted += len(tokens) - 1
    assert accepted > 15
    for text, prompt, answer in zip(texts, prompts, expected, strict=True):
        assert text[len(prompt) :][:NEW_TOKENS] == answer


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_rows_of_guesses_are_the_rows_of_one_step_after_the_other(backend: str, tmp_path: Path) -> None:
    """To the bit by the native operators, which read a weight and a tile of KV once for all of them."""
    model = build_model(tmp_path / "model", VARIANTS["mistral-window"]())
    executor = Executor(make_engine(model, cpu_backend=backend))
    text = make_prompts([PROMPT_TOKENS + 8], 320)[0]
    executor.logits(text[:PROMPT_TOKENS])
    one_by_one = torch.cat([executor.logits(text[: end + 1], end) for end in range(PROMPT_TOKENS, len(text))])
    for rows in range(2, 9):
        together = executor.logits(text[: PROMPT_TOKENS + rows], PROMPT_TOKENS)
        if backend == "native":
            assert torch.equal(together, one_by_one[:rows]), rows
        else:  # other products sum in another order
            assert (together - one_by_one[:rows]).abs().max() < 1e-4 * one_by_one.abs().max()
