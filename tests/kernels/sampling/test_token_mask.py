"""Rows keep the logits whose bits are set, and what is not finite."""

import pytest
import torch

from kernels.sampling.token_mask import CANDIDATE_CONFIGS, reference, token_mask
from kernels.tuning import Config
from tests.kernels.poison import poisoned

FORBIDDEN = -(2.0**98)


def assert_same(vocab: int, device: torch.device, config: Config | None = None) -> None:
    source = torch.Generator().manual_seed(vocab)
    logits = torch.randn((5, vocab), generator=source)
    logits[1, 0], logits[2, vocab - 1], logits[4, vocab // 2] = torch.nan, torch.inf, -torch.inf
    rows = torch.tensor([2, 4, 1], dtype=torch.int32)
    bits = torch.randint(-(1 << 31), 1 << 31, (3, -(-vocab // 32)), generator=source).int()
    bits[0], bits[1, ::2] = 0, -1
    expected = logits.clone()
    reference(expected, rows, bits, FORBIDDEN)
    found = logits.to(device)
    with poisoned():
        token_mask(found, rows.to(device), bits.to(device), FORBIDDEN, config=config)
    assert torch.equal(found.cpu().view(torch.int32), expected.view(torch.int32))
    assert torch.equal(expected[[0, 3]], logits[[0, 3]])
    for row, words in ((2, bits[0]), (4, bits[1])):
        allowed = [token for token in range(vocab) if int(words[token // 32]) >> (token % 32) & 1]
        kept = expected[row] != FORBIDDEN
        assert kept.nonzero().flatten().tolist() == sorted(
            {*allowed, *(~logits[row].isfinite()).nonzero()[:, 0].tolist()}
        )


@pytest.mark.parametrize("vocab", [1, 31, 67, 2048, 2500])
def test_masks_are_the_references(vocab: int, device: torch.device) -> None:
    assert_same(vocab, device)


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    assert_same(4500, device, config)
