"""What was computed from KV that is not what it should be leaves the cache, wherever it is, and what is older stays."""

from contracts.kv.spec import blocks_for
from engine.blocks.manager import BlockManager
from tests.engine.blocks.test_manager import Text, spec

A, B = list(range(12)), list(range(100, 108))


def windowed() -> BlockManager:
    """A query of the one group sees five tokens: its own and four before it."""
    return BlockManager(spec((4, 5)), [40], ahead=30)


class Computed(Text):
    """A text of which parts are computed in steps, from what the cache has of it."""

    def __init__(self, blocks: BlockManager, tokens: list[int], step: int, upto: int = 0) -> None:
        super().__init__(blocks, tokens)
        found = self.begin(step)
        self.known, self.since = list(found.held), found.since(step)
        self.compute(step, upto or len(tokens))

    def compute(self, step: int, upto: int) -> None:
        """Computes the tokens up to `upto` in a step."""
        self.blocks.register(self.tables, self.chains, self.tokens, self.known, upto, step, self.since, False)


def known(blocks: BlockManager, tokens: list[int]) -> int:
    """Counts the tokens of a text that are found."""
    return Text(blocks, tokens).found(99).tokens


def test_a_failed_answer_leaves_what_older_steps_have_stored() -> None:
    blocks = windowed()
    older = Computed(blocks, B, 3)
    failed = Computed(blocks, A, 5, upto=8)
    failed.compute(7, 12)
    same_step, later = Computed(blocks, [*A, 1, 2, 3, 4], 7), Computed(blocks, [*A, 5, 6, 7, 8], 8)
    assert [known(blocks, each.tokens) for each in (older, same_step, later)] == [8, 16, 16]
    blocks.invalidate(failed.tables, 8, since=7)
    assert [known(blocks, each.tokens) for each in (older, same_step, later)] == [8, 8, 8]
    blocks.check_invariants([each.tables for each in (older, failed, same_step, later)])


def test_a_failed_prompt_takes_along_what_else_was_computed_from_what_it_found() -> None:
    """Its window does not reach back to the first block, which is gone; another text was computed from that, too."""
    blocks = windowed()
    older, first = Computed(blocks, B, 1), Computed(blocks, A[:4], 2)
    other, found = Computed(blocks, [*A[:4], 7, 7, 7, 7], 3), Computed(blocks, A[:8], 4)
    failed = Computed(blocks, A, 6)
    assert (found.since, failed.since) == (2, 2) and failed.tables[0][0] == 0, "it has not found the first block itself"
    assert len(failed.tables[0]) == blocks_for(12, 4)
    blocks.free(first.tables)
    blocks.invalidate(failed.tables, 0, blocks.since(failed.tables, failed.since))
    assert [known(blocks, each.tokens) for each in (older, other, found, failed)] == [8, 0, 0, 0]
    blocks.check_invariants([each.tables for each in (older, other, found, failed)])


def test_what_was_copied_into_a_failed_prompt_is_not_copied_again() -> None:
    blocks = BlockManager(spec(4), [40])
    bad = Computed(blocks, A[:4], 1)
    failed = Computed(blocks, [*A[:3], 9, 9, 9, 9, 9], 2)
    assert known(blocks, [*A[:3], 8, 8]) == 3
    blocks.invalidate(failed.tables, 0, 1)
    assert known(blocks, [*A[:3], 8, 8]) == 0
    blocks.check_invariants([bad.tables, failed.tables])
