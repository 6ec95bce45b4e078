"""A digest is that of SplitMix64's last step, wherever words are read from, and however blocks are cut."""

import pytest
import torch
from torch import Tensor

from kernels.block_digest import copy_and_digest, digest, reference

FIRST = 1 << 62
MASK = (1 << 64) - 1


def made(blocks: int, words: int, device: torch.device) -> Tensor:
    low = torch.iinfo(torch.int64).min
    return torch.randint(low, -(low + 1), (blocks, words), dtype=torch.int64).to(device)


def numbers(*values: int, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def mixed(word: int) -> int:
    """The last step of SplitMix64, in Python's whole numbers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


@pytest.mark.parametrize("words", [5, 1024, 1027])
def test_words_count_at_their_places(words: int, device: torch.device) -> None:
    source, blocks = made(4, words, device), numbers(3, 1, device=device)
    span = (0, 0, words, FIRST, words)
    expected = 0
    for place, word in enumerate(source[blocks].flatten().tolist()):
        expected += mixed((word & MASK) ^ ((FIRST + place) * 0x9E3779B97F4A7C15) & MASK)
    assert int(digest(source, blocks, span)) & MASK == expected & MASK
    assert torch.equal(reference(source, blocks, span), digest(source, blocks, span))


def test_parts_of_blocks_are_copied_alone_and_add_up(device: torch.device) -> None:
    """The halves of blocks in two pools, cut into the thirds of others."""
    whole, blocks, there = made(5, 12, device), numbers(4, 0, 2, device=device), numbers(1, 3, 2, device=device)
    halves = [whole[:, :6].contiguous(), whole[:, 6:].contiguous()]
    thirds = [torch.zeros(6, 4, dtype=torch.int64, device=device) for _ in range(3)]
    total = torch.zeros((), dtype=torch.int64, device=device)
    for half, third, begin, end in ((0, 0, 0, 4), (0, 1, 4, 6), (1, 1, 6, 8), (1, 2, 8, 12)):
        span = (begin - 6 * half, begin - 4 * third, end - begin, FIRST + begin, 12)
        total += copy_and_digest(halves[half], blocks, thirds[third], there, span)
    assert torch.equal(total, digest(whole, blocks, (0, 0, 12, FIRST, 12)))
    landed = torch.cat(thirds, 1)
    assert torch.equal(landed[there], whole[blocks]) and not landed[[0, 4, 5]].any()


def test_exchanged_and_altered_words_show(device: torch.device) -> None:
    source, span = made(3, 16, device), (0, 0, 16, FIRST, 16)
    right = digest(source, numbers(1, 2, device=device), span)
    assert not torch.equal(digest(source, numbers(2, 1, device=device), span), right)
    assert not torch.equal(digest(source, numbers(1, 2, device=device), (0, 0, 16, FIRST + 1, 16)), right)
    source[2, 7] ^= 1
    assert not torch.equal(digest(source, numbers(1, 2, device=device), span), right)
