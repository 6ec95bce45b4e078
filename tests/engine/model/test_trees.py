"""What rows of guesses that branch see, where they stand, and which draws count."""

from msgspec import structs

from contracts.messages.sampling import Sampling
from engine.model.batch import build_batch
from engine.plan import StepPlan, Work
from engine.speculation.verify.verification import (
    DRAWN,
    NONE_LEFT,
    NOT_FINITE,
    accepted_drafts,
    judged_drafts,
    kv_moves,
    verified_rows,
    works_by_row,
)
from tests.engine.backends.reference.attention.test_paged_attention import CPU

PARENTS = (-1, -1, 0, 1, 1, 4)
GUESSES = (10, 11, 12, 13, 14, 15)
ASKS = Sampling(seed=0, repetition_penalty=1.1)  # looks back
WORK = Work(3, 6, [1, 2, *GUESSES], ([1, 2],), ASKS, (0,), 5, [0] * 8, proposed=GUESSES, parents=PARENTS)


def test_positions_are_of_depths_and_slots_of_places() -> None:
    plain = Work(1, 4, [9, 9], ([3],), Sampling(seed=0))
    batch = build_batch(StepPlan(0, [plain, WORK]), 8, CPU, None)
    assert batch.positions.tolist() == [4, 5, 6, 7, 8, 8, 9, 9, 9, 10]
    assert batch.groups[0].slots.tolist() == [28, 29, 14, 15, 16, 17, 18, 19, 20, 21]
    assert batch.logit_rows.tolist() == [1, 3, 4, 5, 6, 7, 8, 9]
    trees = batch.trees
    assert trees is not None and trees.works == {1} and trees.deepest == 3
    assert trees.lasts.tolist() == [4, 5, 6, 7, *[7] * 6]
    assert trees.bits.tolist() == [0, 0, 0, 0, 0b1, 0b10, 0b101, 0b1010, 0b10010, 0b110010]
    assert build_batch(StepPlan(0, [plain]), 8, CPU, None).trees is None


def test_a_row_is_drawn_from_as_if_the_way_to_it_had_been_drawn() -> None:
    rows = works_by_row([WORK])
    assert [row.output_index for row in rows] == [5, 6, 6, 7, 7, 7, 8]
    assert [row.proposed for row in rows] == [(), (10,), (11,), (10, 12), (11, 13), (11, 14), (11, 14, 15)]
    assert all(row.tokens is WORK.tokens and not row.parents for row in rows)


def test_draws_count_along_the_guesses_that_come() -> None:
    fine = [DRAWN] * 7
    for tokens, rows, kept in (
        ([11, 0, 14, 0, 0, 15, 99], [0, 2, 5, 6], [11, 14, 15, 99]),
        ([11, 0, 13, 0, 77, 15, 99], [0, 2, 4], [11, 13, 77]),
        ([10, 50, 14, 0, 0, 15, 99], [0, 1], [10, 50]),
        ([77, 12, 14, 0, 0, 15, 99], [0], [77]),
        ([14, 14, 14, 14, 14, 14, 14], [0], [14]),  # a guess deeper down, of another row
    ):
        assert verified_rows(WORK, tokens, fine) == (rows, DRAWN)
        assert [tokens[row] for row in rows] == kept
        assert accepted_drafts(WORK, kept) == [row - 1 for row in rows[1:]]


def test_guesses_are_judged_whose_parent_came_and_no_sibling_before() -> None:
    assert judged_drafts(WORK, [1, 4, 5]) == [
        (0, False),
        (1, True),
        (3, False),
        (4, True),
        (5, True),
    ]
    assert judged_drafts(WORK, [0]) == [(0, True), (2, False)]
    assert judged_drafts(WORK, []) == [(0, False), (1, False)]
    chain = structs.replace(WORK, parents=())
    assert judged_drafts(chain, [0, 1]) == [(0, True), (1, True), (2, False)]


def test_only_rows_that_count_can_fail() -> None:
    tokens = [11, 0, 14, 0, 0, 15, 99]
    assert verified_rows(WORK, tokens, [1, NOT_FINITE, 1, NOT_FINITE, NONE_LEFT, 1, 1])[0] == [0, 2, 5, 6]
    assert verified_rows(WORK, tokens, [1, 1, 1, 1, 1, NOT_FINITE, 1]) == ([], NOT_FINITE)
    assert verified_rows(WORK, tokens, [1, 1, 1, 1, 1, NONE_LEFT, 1]) == ([0, 2], DRAWN)
    assert verified_rows(WORK, tokens, [NONE_LEFT, *[1] * 6]) == ([], NONE_LEFT)


def test_what_came_moves_to_where_it_belongs() -> None:
    """Guesses begin at place 8 of the sequence; the last token has no KV yet."""
    assert kv_moves(WORK, [1, 4, 5], 4) == [(9, 8), (12, 9), (13, 10)]
    assert kv_moves(WORK, [1, 4, 5], 3) == [(9, 8), (12, 9)]
    assert kv_moves(WORK, [0, 2], 3) == [(10, 9)]
    assert kv_moves(WORK, [0], 2) == kv_moves(WORK, [], 1) == kv_moves(WORK, [], 0) == []
