"""Log-probabilities of drawn tokens and of prompts equal transformers' in fp32, whoever else is in the step."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor

from contracts.messages.sampling import Sampling
from contracts.scores import Scores
from engine import scoring
from engine.backends.scorer import MIN_LOGPROB
from engine.executor import Executor
from engine.plan import PENDING_TOKEN, PromptRows, StepPlan, StepResult, Work
from tests.engine.drive import GREEDY
from tests.engine.test_golden import make_engine, make_executor
from tests.reference import build_model, load_reference, logprobs, make_prompts
from tests.variants import VARIANTS

MAX_ERROR = 1e-4
SEEDED = Sampling(seed=5, temperature=1.0, logprobs=5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = VARIANTS["qwen3"]()
    config.num_hidden_layers, config.layer_types = 2, config.layer_types[:2]
    return build_model(tmp_path_factory.mktemp("scoring") / "model", config)


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    return load_reference(model)


@pytest.fixture(scope="module", params=["native", "torch", "triton"])
def executor(request: pytest.FixtureRequest, model: Path) -> Executor:
    return make_executor(model, cpu_backend=request.param)


def step(executor: Executor, *works: Work) -> StepResult:
    executor.launch(StepPlan(0, list(works)))
    return executor.collect()


def matches(scores: Scores, rows: Tensor, tokens: Sequence[int], top: int) -> None:
    """Each token's scores are what a row of log-probabilities says."""
    assert len(scores) == len(tokens) == len(rows) and scores.top == top
    for told, row, token in zip(scores, rows, tokens, strict=True):
        assert told.logprob == pytest.approx(float(row[token]), abs=MAX_ERROR)
        assert told.rank == pytest.approx(1 + int((row > row[token]).sum()), abs=1), "two may be as good as equal"
        best = row.topk(top)
        assert [value for _, value in told.top] == pytest.approx(best.values.tolist(), abs=MAX_ERROR)
        for (token_id, _), value in zip(told.top, best.values.tolist(), strict=True):
            assert float(row[token_id]) == pytest.approx(value, abs=MAX_ERROR)


def test_drawn_tokens_have_transformers_log_probabilities(executor: Executor, reference: Any) -> None:
    """Greedy and seeded, one sample and several, beside a work that does not ask."""
    prompts = make_prompts([18, 3, 5], 320)
    greedy = structs.replace(GREEDY, logprobs=20)
    works = [
        Work(1, 0, prompts[0], ([1, 2],), greedy),
        Work(2, 0, prompts[1], ([3],), GREEDY),
        Work(3, 0, prompts[2], ([4, 5, 6],), SEEDED, (0, 3, 1)),
    ]
    result = step(executor, *works)
    assert result.scores.keys() == {0, 2} and [len(each) for each in result.scores.values()] == [1, 3]
    matches(result.scores[0][0], logprobs(reference, prompts[0])[-1:], result.tokens[0], 20)
    row = logprobs(reference, prompts[2])[-1:]
    for scores, token in zip(result.scores[2], result.tokens[2], strict=True):
        matches(scores, row, [token], 5)
    assert step(executor, works[1]).scores == {}


@pytest.mark.parametrize("variant", ["gemma2", "granite"])
def test_logits_that_are_capped_or_divided_give_transformers_log_probabilities(variant: str, tmp_path: Path) -> None:
    """Greedy tokens alone would not tell: both leave the best token the best."""
    model = build_model(tmp_path / "model", VARIANTS[variant]())
    prompt = make_prompts([20], 320)[0]
    executor = make_executor(model)
    tables = ([1, 2],) * len(executor.engine.pool.counts)
    result = step(executor, Work(1, 0, prompt, tables, structs.replace(GREEDY, logprobs=20)))
    matches(result.scores[0][0], logprobs(load_reference(model), prompt)[-1:], result.tokens[0], 20)


def test_tokens_of_steps_that_are_launched_ahead_have_their_own(executor: Executor, reference: Any) -> None:
    prompt = make_prompts([20], 320)[0]
    greedy = structs.replace(GREEDY, logprobs=1)
    executor.launch(StepPlan(0, [Work(1, 0, prompt, ([1, 2],), greedy)]))
    executor.launch(
        StepPlan(1, [Work(1, 20, [PENDING_TOKEN], ([1, 2],), structs.replace(greedy, logprobs=0), (0,), 1)])
    )
    first, second = executor.collect(), executor.collect()
    rows = logprobs(reference, prompt + first.tokens[0])
    matches(first.scores[0][0], rows[19:20], first.tokens[0], 1)
    matches(second.scores[0][0], rows[20:], second.tokens[0], 0)


def test_prompts_have_transformers_log_probabilities_in_any_chunks(executor: Executor, reference: Any) -> None:
    """The last row is the drawn token's; a chunk may begin with rows that nobody asks for; others are not touched."""
    prompt, other = make_prompts([20, 4], 320)
    rows = logprobs(reference, prompt)
    parts, alone = [], step(executor, Work(2, 0, other, ([4],), GREEDY)).tokens[0]
    for start, end, first in ((0, 1, 0), (1, 7, 0), (4, 15, 3), (15, 20, 0)):
        targets = prompt[start + first + 1 : end + 1]
        last = end == len(prompt)
        own = Work(1, start, prompt[start:end], ([1, 2, 3],), structs.replace(GREEDY, logprobs=2) if last else None)
        result = step(
            executor,
            Work(2, 0, other, ([4],), GREEDY),
            structs.replace(own, prompt_rows=PromptRows(first, targets, 3)),
            Work(3, 0, other, ([5],)),
            Work(4, 0, other, ([6],), None, prompt_rows=PromptRows(0, other[1:], 0)),
        )
        assert result.prompt_scores.keys() == {1, 3} and result.tokens[0] == alone
        matches(result.prompt_scores[3], logprobs(reference, other)[:-1], other[1:], 0)
        parts.append(result.prompt_scores[1])
    matches(Scores.joined(parts), rows[:-1], prompt[1:], 3)
    matches(result.scores[1][0], rows[-1:], result.tokens[1], 2)


def test_few_rows_of_logits_are_in_memory_at_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "LOGIT_ROWS_AT_ONCE", 4)
    executor = make_executor(model)
    counts: list[int] = []
    own = executor.engine.model.logits

    def counted(hidden: Tensor) -> Tensor:
        counts.append(len(hidden))
        return own(hidden)

    monkeypatch.setattr(executor.engine.model, "logits", counted)
    prompt = make_prompts([11], 320)[0]
    work = Work(1, 0, prompt, ([1],), GREEDY, prompt_rows=PromptRows(0, prompt[1:], 1))
    few = step(executor, work)
    assert counts == [4, 4, 2, 1]
    monkeypatch.undo()
    assert step(make_executor(model), work) == few


def test_raw_log_probabilities_are_those_before_adjustments(executor: Executor, reference: Any) -> None:
    prompt = make_prompts([5], 320)[0]
    forced = structs.replace(GREEDY, logit_bias=((7, 1000.0),), logprobs=3)
    result = step(executor, Work(1, 0, prompt, ([1, 2],), GREEDY), Work(2, 0, prompt, ([3, 4],), forced))
    assert result.tokens[1] == [7]
    matches(result.scores[1][0], logprobs(reference, prompt)[-1:], [7], 3)


@pytest.mark.parametrize("backend", ["native", "torch", "triton"])
def test_processed_log_probabilities_are_those_of_the_draw(backend: str, model: Path, reference: Any) -> None:
    """After biases, temperature and filters; each row as its own sampling says, greedy ones without those."""
    prompt = make_prompts([5], 320)[0]
    bias = ((3, 2.5), (9, -1.5))
    kinds = [
        structs.replace(GREEDY, logit_bias=bias, top_k=2, logprobs=4),
        Sampling(seed=1, temperature=0.7, logprobs=4),
        Sampling(seed=2, temperature=1.5, top_k=6, logprobs=8),
        Sampling(seed=3, temperature=0.5, top_p=0.6, min_p=0.01, logit_bias=bias, logprobs=4),
    ]
    executor = Executor(make_engine(model, cpu_backend=backend), logprobs_mode="processed_logprobs")
    works = [
        Work(number, 0, prompt, ([2 * number + 1, 2 * number + 2],), kind, (0, 1)) for number, kind in enumerate(kinds)
    ]
    result = step(executor, *works)
    for index, kind in enumerate(kinds):
        row = logprobs(reference, prompt)[-1:].clone()
        for token, value in kind.logit_bias:
            row[0, token] += value
        if kind.temperature:
            row = filtered(row[0] / kind.temperature, kind)[None]
        for scores, token in zip(result.scores[index], result.tokens[index], strict=True):
            matches(scores, row.log_softmax(-1).clamp(min=MIN_LOGPROB), [token], kind.logprobs or 0)


def filtered(scaled: Tensor, kind: Sampling) -> Tensor:
    """What top_k, then top_p, then min_p leave, token by token."""
    shares = scaled.softmax(-1)
    order = sorted(range(len(shares)), key=lambda token: -float(shares[token]))[: kind.top_k or None]
    inside, gathered = float(shares[order].sum()), 0.0
    kept: list[int] = []
    for token in order:
        if kept and gathered >= kind.top_p * inside:
            break
        kept.append(token)
        gathered += float(shares[token])
    kept = [token for token in kept if shares[token] >= kind.min_p * shares[order[0]]]
    left = torch.full_like(scaled, -math.inf)
    left[kept] = scaled[kept]
    return left


def test_a_prompt_whose_rows_are_not_finite_fails_before_its_end(model: Path) -> None:
    executor = make_executor(model)
    prompt = make_prompts([20], 320)[0]
    step(executor, Work(1, 0, prompt[:16], ([1],)))
    for layer in executor.engine.pool.layers:
        layer[1] = math.nan
    result = step(executor, Work(1, 16, prompt[16:18], ([1, 2],), prompt_rows=PromptRows(0, prompt[17:19], 0)))
    assert result.failed == [0] and result.prompt_scores == {}
