"""Adjusted logits against OpenAI's formula and transformers' processors, for every adjuster."""

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from contracts.messages.sampling import Sampling
from engine.backends.adjuster import FORBIDDEN_LOGIT
from engine.constraints import Masks
from engine.plan import Work
from tests.engine.backends.adjusters import ADJUSTERS

VOCAB = 131
PROMPT = [3, 5, 7, 5, 130]
OUTPUT = [9, 5, 9, 64, 9, 11]


def logits_of(rows: int, seed: int = 0) -> Tensor:
    return torch.randn((rows, VOCAB), generator=torch.Generator().manual_seed(seed)) * 3


def work_of(sampling: Sampling, banned: tuple[int, ...] = (), output: list[int] = OUTPUT) -> Work:
    tokens = PROMPT + output
    return Work(1, len(tokens) - 1, tokens[-1:], ([1],), sampling, (0,), len(output), tokens, len(PROMPT), banned)


@pytest.fixture(params=ADJUSTERS)
def name(request: pytest.FixtureRequest) -> str:
    """Names an adjuster."""
    found: str = request.param
    return found


def adjusted(name: str, logits: Tensor, *works: Work, masks: Masks | None = None) -> Tensor:
    return ADJUSTERS[name]().adjust(logits.clone(), works, None, masks)


def openai(logits: Tensor, output: list[int], frequency: float, presence: float) -> Tensor:
    """mu[j] -> mu[j] - c[j] * frequency - float(c[j] > 0) * presence, as OpenAI's documentation has it."""
    mu = logits.clone()
    for j in range(mu.shape[1]):
        c = output.count(j)
        mu[:, j] = mu[:, j] - c * torch.tensor(frequency) - float(c > 0) * torch.tensor(presence)
    return mu


def test_presence_and_frequency_count_the_output_alone(name: str) -> None:
    logits = logits_of(1)
    for frequency, presence in ((0.7, 0.0), (0.0, 1.3), (0.3, -0.4)):
        sampling = Sampling(0, presence_penalty=presence, frequency_penalty=frequency)
        assert torch.equal(adjusted(name, logits, work_of(sampling)), openai(logits, OUTPUT, frequency, presence))


def test_repetition_is_penalized_as_transformers_does(name: str) -> None:
    logits = logits_of(1)
    for penalty in (1.3, 0.8):
        expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT + OUTPUT]), logits.clone())
        assert torch.equal(adjusted(name, logits, work_of(Sampling(0, repetition_penalty=penalty))), expected)


@pytest.mark.parametrize(
    ("sampling", "banned", "judge"),
    [
        (
            Sampling(0, bad_words=((4,), (9, 11, 6), (9, 11), (12, 11, 8), (11, 10))),
            (),
            NoBadWordsLogitsProcessor([[4], [9, 11, 6], [9, 11], [12, 11, 8], [11, 10]], eos_token_id=1),
        ),
        (Sampling(0), (1, 2), MinNewTokensLengthLogitsProcessor(len(PROMPT), len(OUTPUT) + 1, [1, 2])),
    ],
)
def test_what_transformers_makes_impossible_is_forbidden(
    name: str, sampling: Sampling, banned: tuple[int, ...], judge: LogitsProcessor
) -> None:
    logits = logits_of(1)
    expected = judge(torch.tensor([PROMPT + OUTPUT]), logits.clone())
    found = adjusted(name, logits, work_of(sampling, banned))
    assert (found == FORBIDDEN_LOGIT).any()
    assert torch.equal(found, expected.masked_fill(expected == -torch.inf, FORBIDDEN_LOGIT))


def test_only_allowed_tokens_and_those_of_a_mask_are_left(name: str) -> None:
    logits = logits_of(2)
    bits = np.zeros((1, -(-VOCAB // 32)), np.uint32)
    for token in (5, 64, 130):
        bits[0, token // 32] |= np.uint32(1 << (token % 32))
    works = [work_of(Sampling(0)), work_of(Sampling(0, allowed_token_ids=(5, 6, 130)))]
    found = adjusted(name, logits, *works, masks=Masks([1], bits.view(np.int32)))
    assert torch.equal(found[0], logits[0])
    assert (found[1] != FORBIDDEN_LOGIT).nonzero().flatten().tolist() == [5, 130]
    assert torch.equal(found[1, [5, 130]], logits[1, [5, 130]])
