"""The Triton sampler beyond what `test_sampler.py` asks of every sampler: PyTorch's draws, and its two halves."""

import pytest
import torch
from torch import Tensor

from contracts.messages.sampling import Sampling
from engine.backends.reference.sampling.sampler import ReferenceSampler
from engine.backends.sampler import Draw
from engine.backends.triton.sampling.sampler import is_filtered
from tests.engine.backends.device_sampler import DeviceSampler

KINDS = [
    Sampling(1, temperature=0.0),
    Sampling(2),
    Sampling(3, temperature=0.7, top_k=20, top_p=0.95),
    Sampling(4, temperature=1.4, top_p=0.9, min_p=0.02),
    Sampling(5, top_k=1000),
    Sampling(6, min_p=0.2),
]
VOCAB = 257


def logits_of(rows: int, spread: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Makes logits, of which some are equal."""
    logits = torch.randn((rows, VOCAB), generator=torch.Generator().manual_seed(rows)) * spread
    logits[:, ::2] = logits[:, ::2].bfloat16().float()
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_draws_are_those_of_torch(dtype: torch.dtype, spread: float) -> None:
    """Sampler against sampler, from the draws on: to the token."""
    draws = [Draw(kind, (7, 0) if index % 2 else (index,), 3 * index) for index, kind in enumerate(KINDS)]
    logits = logits_of(len(draws), spread, dtype)
    expected, _ = ReferenceSampler().sample(logits.clone(), draws)
    found, finite = DeviceSampler().sample(logits, draws)
    assert torch.equal(found, expected) and finite.all()
    assert found.dtype == torch.int64 and finite.dtype == torch.bool


def test_it_is_known_whether_there_is_a_filter() -> None:
    greedy = Sampling(1, temperature=0.0, top_k=5, top_p=0.5, min_p=0.5)
    none = [greedy, Sampling(2), Sampling(3, top_k=VOCAB)]
    some = [Sampling(2, top_k=5), Sampling(2, top_p=0.5), Sampling(2, min_p=0.5)]
    for kind in none:
        assert not is_filtered([Draw(kind, (0,), 0), Draw(none[1], (0,), 0)], VOCAB), kind
    for kind in some:
        assert is_filtered([Draw(none[1], (0,), 0), Draw(kind, (0,), 0)], VOCAB), kind
