"""Every pair is in one row, in a tile of its expert's, in order; whatever is chosen, there are tiles enough."""

import pytest
import torch
from torch import Tensor

from kernels.moe.chunked_sort import sort_chunks
from kernels.moe.sort_by_expert import (
    CANDIDATE_CONFIGS,
    MAX_PAIRS_AT_ONCE,
    NO_PAIR,
    Tiles,
    max_tiles,
    reference,
    sort_by_expert,
)
from kernels.tuning import Config
from tests.kernels.poison import poisoned


def drawn(tokens: int, used: int, experts: int, device: torch.device) -> Tensor:
    if not tokens:
        return torch.empty((0, used), dtype=torch.int32, device=device)
    return torch.stack([torch.randperm(experts)[:used] for _ in range(tokens)]).int().to(device)


def check(chosen: Tensor, experts: int, rows: int, config: Config | None = None) -> Tiles:
    with poisoned():
        found = sort_by_expert(chosen, experts, rows, config=config)
    expected = reference(chosen, experts, rows)
    assert torch.equal(found.owners, expected.owners)
    needed = int((found.owners != NO_PAIR).sum()) * rows
    assert torch.equal(found.pairs[:needed], expected.pairs[:needed])
    own = (chosen.flatten() < experts).nonzero().flatten().tolist()
    assert expected.pairs.sort().values[len(expected.pairs) - len(own) :].tolist() == own
    return found


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize(
    ("tokens", "used", "experts"), [(1, 4, 60), (1, 1, 1), (7, 3, 7), (300, 4, 10), (33, 2, 33), (0, 2, 4)]
)
def test_pairs_are_in_tiles_of_their_experts(
    tokens: int, used: int, experts: int, rows: int, device: torch.device
) -> None:
    check(drawn(tokens, used, experts, device), experts, rows)


@pytest.mark.parametrize(("tokens", "used", "experts"), [(1, 4, 60), (3, 1, 1), (300, 4, 8), (700, 6, 16)])
def test_pairs_of_other_ranks_experts_are_left_out(tokens: int, used: int, experts: int, device: torch.device) -> None:
    chosen = drawn(tokens, used, 2 * experts + 2, device)
    chosen[0] = experts
    check(chosen.clamp(max=experts), experts, 16)


@pytest.mark.parametrize("expert", [0, 5, 30])
def test_all_pairs_on_one_expert(expert: int, device: torch.device) -> None:
    found = check(torch.full((40, 1), expert, dtype=torch.int32, device=device), 31, 16)
    assert found.owners[:3].tolist() == [expert] * 3 and (found.owners[3:] == NO_PAIR).all()


def test_more_tiles_than_are_written_at_once(device: torch.device) -> None:
    chosen = torch.arange(50, dtype=torch.int32, device=device)[:, None]
    check(chosen, 50, 16, Config({"CHUNK": 16}, warps=1))
    check(torch.zeros_like(chosen), 3, 2, Config({"CHUNK": 16}, warps=1))


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    check(drawn(300, 6, 20, device), 20, 16, config)


@pytest.mark.parametrize(("tokens", "used", "experts"), [(1033, 4, 10), (700, 6, 60), (4097, 1, 1), (515, 8, 256)])
def test_many_pairs_are_sorted_in_chunks(tokens: int, used: int, experts: int, device: torch.device) -> None:
    assert tokens * used > MAX_PAIRS_AT_ONCE
    check(drawn(tokens, used, experts, device), experts, 16)


@pytest.mark.parametrize(("tokens", "used", "experts"), [(1, 1, 1), (37, 3, 33), (200, 4, 5), (37, 8, 256)])
@pytest.mark.parametrize(("rows", "chunk"), [(2, 16), (64, 16), (2, 64)])
def test_chunks_of_any_number(
    tokens: int, used: int, experts: int, rows: int, chunk: int, device: torch.device
) -> None:
    """The table has fewer rows than are loaded at once, or several times as many; chunks end in any place."""
    chosen = drawn(tokens, used, experts, device)
    expected = reference(chosen, experts, rows)
    with poisoned():
        pairs, owners = torch.empty_like(expected.pairs), torch.empty_like(expected.owners)
        sort_chunks(chosen, pairs, owners, experts=experts, rows=rows, config=Config({"CHUNK": chunk}, warps=1))
    assert torch.equal(owners, expected.owners)
    needed = int((owners != NO_PAIR).sum()) * rows
    assert torch.equal(pairs[:needed], expected.pairs[:needed])


def test_there_are_as_many_tiles_as_the_worst_choice_takes() -> None:
    for pairs, experts, rows in ((8, 128, 16), (1, 4, 64), (65536, 128, 128), (100, 3, 16)):
        full = min(experts, pairs)
        worst = [1] * full  # one pair each, and the rest wherever a tile would be full
        worst[0] += (pairs - full) // rows * rows
        worst[-1] += (pairs - full) % rows
        assert sum(-(-each // rows) for each in worst) <= max_tiles(pairs, experts, rows)
        assert max_tiles(pairs, experts, rows) <= pairs // rows + full
