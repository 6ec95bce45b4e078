"""Single tokens are forbidden: always, or behind one token."""

import pytest
import torch

from kernels.sampling.forbid_tokens import forbid_tokens, reference
from tests.kernels.poison import poisoned

FORBIDDEN = -(2.0**98)


@pytest.mark.parametrize(("vocab", "count"), [(3, 1), (67, 128), (1000, 300)])
def test_entries_whose_condition_holds_count(vocab: int, count: int, device: torch.device) -> None:
    """Some are there twice, with and without the condition; what is not finite stays."""
    source = torch.Generator().manual_seed(count)
    logits = torch.randn((6, vocab), generator=source)
    logits[2] = torch.nan
    logits[3, 1], logits[3, 2] = torch.inf, -torch.inf
    sampled = torch.randint(0, 4, (5,), generator=source)
    entries = torch.stack(
        [torch.randint(low, high, (count,), generator=source) for low, high in ((0, 6), (0, vocab), (-1, 5), (0, 4))]
    ).int()
    expected = logits.clone()
    for row, token, place, wanted in entries.T.tolist():
        if (place == -1 or int(sampled[place]) == wanted) and logits[row, token].isfinite():
            expected[row, token] = FORBIDDEN
    for forbid in (forbid_tokens, reference):
        found = logits.to(device)
        with poisoned():
            forbid(found, entries.to(device), sampled.to(device), FORBIDDEN)
        assert torch.equal(found.cpu().view(torch.int32), expected.view(torch.int32))
    assert count == 1 or 10 < (expected == FORBIDDEN).sum() < count
