"""Penalized logits and counts are the reference's, to the bit, and nothing else is touched."""

import pytest
import torch
from torch import Tensor

from kernels.sampling.penalize import CANDIDATE_CONFIGS, penalize, reference
from kernels.tuning import Config
from tests.kernels.poison import poisoned

ROWS, TEXTS, SAMPLES = 5, 7, 6


def problem(vocab: int, device: torch.device, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Four of five rows, of which one counts nothing; two texts go on with the same sample's token."""
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn((ROWS, vocab), generator=source) * 4
    logits[0, 0], logits[1, vocab - 1], logits[2, vocab // 2], logits[4] = torch.nan, torch.inf, -0.0, -0.0
    counts = torch.randint(0, 9, (TEXTS, vocab), generator=source, dtype=torch.int32)
    counts *= torch.rand((TEXTS, vocab), generator=source) < 0.5
    texts = torch.tensor([[2, 0, 4, 1], [6, 1, 0, 3], [5, -1, 3, 3]], dtype=torch.int32)
    penalties = torch.tensor([[1.3, 0.7, 1.0, 1.1], [0.3, -0.2, 0.0, 1e6], [1.5, -0.4, 0.0, 0.1]])
    sampled = torch.randint(0, vocab, (SAMPLES,), generator=source)
    sampled[5] = vocab - 1
    return logits.to(device), counts.to(device), texts.to(device), penalties.to(device), sampled.to(device)


def assert_same(vocab: int, device: torch.device, config: Config | None = None) -> None:
    found, expected = problem(vocab, device), problem(vocab, device)
    with poisoned():
        penalize(*found, config=config)
    reference(*expected)
    bits = [logits.view(torch.int32)[~logits.isnan()] for logits in (found[0], expected[0])]
    assert torch.equal(*bits) and torch.equal(found[0].isnan(), expected[0].isnan())
    assert torch.equal(found[1], expected[1])
    before = problem(vocab, device)
    assert torch.equal(found[0][3], before[0][3]) and torch.equal(found[1][[2, 4, 5]], before[1][[2, 4, 5]])
    assert (found[1] - before[1]).sum(1).tolist() == [2, 0, 0, 2, 0, 0, 2], "three texts have a newest token"


@pytest.mark.parametrize("vocab", [1, 67, 1024, 2500])
def test_penalties_are_the_references(vocab: int, device: torch.device) -> None:
    assert_same(vocab, device)


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    assert_same(4500, device, config)
