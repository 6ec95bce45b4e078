"""States of blocks' last tokens are those that were kept last, and of blocks that stand where they stood."""

import torch

from engine.speculation.proposers.block_states import BlockEnd, BlockStates

CPU = torch.device("cpu")


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([[value, -value] for value in values], dtype=torch.float32)


def test_a_block_has_the_state_that_it_was_filled_with_last() -> None:
    states = BlockStates(4, 2, CPU, torch.float32)
    states.keep([BlockEnd(7, 15, 2), BlockEnd(3, 31, 0)], rows(1, 2, 3))
    states.keep([], rows())
    states.keep([BlockEnd(7, 47, 0)], rows(9))
    found = states.find(7, 47)
    assert found is not None and found.tolist() == [9, -9]
    assert states.find(7, 15) is None, "it stands elsewhere now"
    assert states.find(4, 15) is None


def test_the_blocks_that_were_not_heard_of_for_longest_give_way() -> None:
    states = BlockStates(3, 2, CPU, torch.float32)
    for block in (1, 2, 3):
        states.keep([BlockEnd(block, 15, 0)], rows(block))
    states.keep([BlockEnd(1, 15, 0)], rows(10))
    states.keep([BlockEnd(4, 15, 0)], rows(4))
    known = {block: state.tolist() for block in range(6) if (state := states.find(block, 15)) is not None}
    assert known == {1: [10, -10], 3: [3, -3], 4: [4, -4]}
    states.keep([BlockEnd(block, 15, block - 5) for block in range(5, 10)], rows(5, 6, 7, 8, 9))
    known = {block: state.tolist() for block in range(12) if (state := states.find(block, 15)) is not None}
    assert known == {7: [7, -7], 8: [8, -8], 9: [9, -9]}
