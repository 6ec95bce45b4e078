"""Every scorer tells the same of a row: a float64 softmax's log-probabilities, ranks, and the likeliest tokens."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.backends.native.library import load
from engine.backends.native.sampling.scorer import NativeScorer
from engine.backends.reference.sampling.scorer import AT_ONCE, ReferenceScorer
from engine.backends.scorer import MIN_LOGPROB, Scorer, finite, scores_of, width
from engine.backends.triton.sampling.scorer import TritonScorer
from launcher.devices.gpus import visible_gpus

DEVICE = "cuda" if visible_gpus() else "cpu"
MAX_ERROR = 2.0**-20
"""A log-probability is -16 or more here: half a unit of it, and four of each exponential that is summed up."""


class DeviceScorer:
    """The Triton scorer, where its kernels can run; of logits on the CPU."""

    def score(self, logits: Tensor, rows: Tensor | None, tokens: Tensor, top: int) -> Tensor:
        there = None if rows is None else rows.to(DEVICE)
        return TritonScorer().score(logits.to(DEVICE), there, tokens.to(DEVICE), top).cpu()


SCORERS: dict[str, Callable[[], Scorer]] = {
    "torch": ReferenceScorer,
    "native": lambda: NativeScorer(load()),
    "triton": DeviceScorer,
}


@pytest.fixture(scope="module", params=SCORERS)
def scorer(request: pytest.FixtureRequest) -> Scorer:
    """Each scorer."""
    return SCORERS[request.param]()


def logits_of(rows: int, vocab: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Half of them are rounded, so that some are equal."""
    logits = torch.randn((rows, vocab), generator=torch.Generator().manual_seed(rows * vocab)) * 2
    logits[:, ::2] = logits[:, ::2].bfloat16().float()
    return logits.to(dtype)


def exact(logits: Tensor, row: int, token: int, top: int) -> tuple[float, int, list[int], list[float]]:
    """One token's scores by their definition."""
    x = logits[row].double()
    logprobs = (x - x.logsumexp(0)).tolist()
    order = sorted(range(len(x)), key=lambda id: (-float(x[id]), id))[:top]
    return logprobs[token], 1 + int((x > x[token]).sum()), order, [logprobs[id] for id in order]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "top"), [(2, 2), (37, 20), (521, 0), (2500, 5)])
def test_scores_are_those_of_the_definition(scorer: Scorer, vocab: int, top: int, dtype: torch.dtype) -> None:
    logits = logits_of(5, vocab, dtype)
    rows, tokens = [0, 3, 3, 4], [0, vocab - 1, vocab // 2, vocab // 3]
    words = scorer.score(logits, torch.tensor(rows), torch.tensor(tokens), top)
    assert words.shape == (4, width(top)) and words.dtype == torch.int32
    for row, token, told in zip(rows, tokens, scores_of(words.numpy(), top), strict=True):
        logprob, rank, ids, logprobs = exact(logits, row, token, top)
        assert (told.rank, [id for id, _ in told.top]) == (rank, ids)
        assert told.logprob == pytest.approx(logprob, abs=MAX_ERROR)
        assert [value for _, value in told.top] == pytest.approx(logprobs, abs=MAX_ERROR)


def test_without_rows_each_token_has_its_own(scorer: Scorer) -> None:
    logits, tokens = logits_of(AT_ONCE + 3, 50), torch.arange(AT_ONCE + 3) % 50
    expected = scorer.score(logits, torch.arange(len(tokens)), tokens, 3)
    assert torch.equal(scorer.score(logits, None, tokens, 3), expected)
    alone = [scorer.score(logits[row : row + 1], None, tokens[row : row + 1], 3) for row in range(len(tokens))]
    assert torch.equal(torch.cat(alone), expected), "a row's words are its own, whatever the batch"


def test_of_equal_logits_the_lower_id_comes_first(scorer: Scorer) -> None:
    logits = torch.full((1, 700), -3.0)
    logits[0, [3, 40, 41, 300, 699]] = torch.tensor([0.0, -0.0, 0.0, 1.0, -0.0])
    words = scorer.score(logits, None, torch.tensor([41]), 7).numpy()
    assert words[0, 2:9].tolist() == [300, 3, 40, 41, 699, 0, 1] and words[0, 1] == 2


def test_forbidden_logits_have_a_number_that_json_knows(scorer: Scorer) -> None:
    logits = torch.full((1, 40), -(2.0**98))
    logits[0, 7] = 3.0
    (told,) = scores_of(scorer.score(logits, None, torch.tensor([2]), 2).numpy(), 2)
    assert told == (MIN_LOGPROB, 2, [(7, 0.0), (0, MIN_LOGPROB)])


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_seen_and_stays_alone(scorer: Scorer, poison: float) -> None:
    logits, tokens = logits_of(3, 100), torch.tensor([1, 50, 3])
    expected = scorer.score(logits, None, tokens, 4)
    for place in (0, 50, 99):  # another token's logit, or its own
        bad = logits.clone()
        bad[1, place] = poison
        found = scorer.score(bad, None, tokens, 4)
        assert torch.equal(found[::2], expected[::2])
        assert finite(expected.numpy()) and not finite(found.numpy()) and finite(found.numpy()[::2])


def test_a_token_may_want_fewer_alternatives_than_the_step_has() -> None:
    words = ReferenceScorer().score(logits_of(2, 30), None, torch.tensor([4, 5]), 6).numpy()
    whole = list(scores_of(words, 6))
    assert [each.top[:2] for each in whole] == [each.top for each in scores_of(words, 2)]
    assert [each.logprob for each in whole] == [each.logprob for each in scores_of(np.asfortranarray(words), 0)]


def test_native_rows_are_the_same_whatever_the_threads() -> None:
    scorer, logits, tokens = NativeScorer(load()), logits_of(24, 20_000), torch.arange(24)
    expected, before = scorer.score(logits, None, tokens, 20), torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert torch.equal(scorer.score(logits, None, tokens, 20), expected)
    finally:
        torch.set_num_threads(before)
