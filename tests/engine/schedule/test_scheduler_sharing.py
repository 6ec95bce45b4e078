"""Scheduler: samples of one prompt, what others have computed, and who gives way, each rule as one small case."""

from array import array

import pytest

from contracts.ids import AttemptKey
from contracts.messages.sampling import Limits
from engine.plan import BlockMove, StepResult
from engine.schedule.progress import NON_FINITE, SequenceProgress
from engine.schedule.sequence import Sequence, SequenceState
from tests.engine.schedule.scheduler_by_hand import GREEDY, added, answered, busy, job, planned, scheduler, step


def samples(count: int, length: int, max_tokens: int = 8, *, hand_off: bool = False) -> list[Sequence]:
    """Makes the samples of one prompt."""
    found = []
    for number in range(count):
        found.append(job(length, max_tokens, hand_off=hand_off, stop=9, salt="samples"))
        found[-1].key = AttemptKey("r", number, 1)
    return found


# samples of one prompt


def test_samples_share_their_prompt_s_blocks_and_copy_only_the_last() -> None:
    engine, members = scheduler(), samples(4, 10)
    engine.add(members[0], members[1:])
    plan = planned(engine)
    assert [work.samples for work in plan.works] == [(0, 1, 2, 3)]
    progress = engine.apply(StepResult(plan.step, [[11, 12, 13, 14]]), 2.0)
    assert progress == [SequenceProgress(each, 0, [11 + number]) for number, each in enumerate(members)]
    assert engine.load().blocks_used == 3 and all(each.blocks == members[0].blocks for each in members)
    before = members[0].blocks[0][2]
    assert not engine.take_moves()
    plan = planned(engine)
    assert [(work.start, list(work.token_ids), work.samples) for work in plan.works] == [
        (10, [11 + number], (number,)) for number in range(4)
    ]
    last = [each.blocks[0][2] for each in members]
    assert engine.take_moves() == [BlockMove("copy", 0, before, block) for block in last[:3]]
    assert last[3] == before and len(set(last)) == 4, "the last that is left with a shared block keeps it"
    assert engine.load().blocks_used == 2 + 4
    answered(engine, plan)
    while busy(engine):
        step(engine)
    kv = engine.load().kv
    assert (kv.forks, kv.copied_blocks, engine.load().prompt_tokens) == (3, 3, 10)


def test_samples_of_whole_blocks_copy_nothing() -> None:
    engine, members = scheduler(), samples(3, 8)
    engine.add(members[0], members[1:])
    step(engine)
    step(engine)
    assert not engine.take_moves() and engine.load().blocks_used == 2 + 3


def test_a_sample_that_ends_with_its_first_token_leaves_the_others_alone() -> None:
    engine, members = scheduler(), samples(3, 10)
    engine.add(members[0], members[1:])
    plan = planned(engine)
    progress = engine.apply(StepResult(plan.step, [[9, 5, 9]]), 2.0)
    assert [(each.tokens, each.finish) for each in progress] == [([9], "stop"), ([5], None), ([9], "stop")]
    engine.check_invariants()
    assert step(engine) == [(2, 10, 1)]
    assert not engine.take_moves(), "nobody shares its blocks any more"


def test_logits_that_are_not_finite_end_all_samples() -> None:
    engine, members = scheduler(), samples(3, 10)
    engine.add(members[0], members[1:])
    progress = answered(engine, planned(engine), failed=(0,))
    assert sorted(each.sequence.key.sample for each in progress) == [0, 1, 2]
    assert all(each.failed == NON_FINITE for each in progress) and engine.load().blocks_used == 0


# what others have computed


def test_a_prompt_that_several_send_at_once_is_computed_once() -> None:
    engine = scheduler()
    added(engine, *(job(10, salt="same") for _ in range(3)), job(10, salt="other"))
    assert step(engine) == [(1, 0, 10), (2, 8, 2), (3, 8, 2), (4, 0, 10)]
    assert engine.load().blocks_used == 2 + 3 + 3
    kv = engine.load().kv
    assert (kv.queried_tokens, kv.found_tokens, kv.partial_hits) == (40, 16, 0)


def test_a_prompt_in_chunks_is_found_as_far_as_it_is_planned() -> None:
    engine = scheduler(batch=6, in_flight=2)
    engine.add(job(12, hand_off=True, salt="same"))
    first = planned(engine)
    engine.add(job(12, salt="same"))
    second = planned(engine)  # the last six tokens of the first; nothing is left of this step
    assert [work.sequence for work in second.works] == [1]
    answered(engine, first)
    assert [(work.sequence, work.start, len(work.token_ids)) for work in planned(engine).works] == [(2, 11, 1)]


def test_of_a_prompt_that_is_known_one_token_is_computed() -> None:
    engine = scheduler()
    first, again = job(8, 1, salt="same"), job(8, 1, salt="same")
    engine.add(first)
    step(engine)
    engine.add(again)
    assert step(engine) == [(2, 7, 1)]
    assert (again.cached_tokens, again.held_blocks) == (7, (1,))
    assert [move.kind for move in engine.take_moves()] == ["copy"]  # of its last block, for it ends inside
    kv = engine.load().kv
    assert (kv.found_tokens, kv.partial_hits) == (7, 1)


def test_what_follows_a_known_prompt_is_known_too() -> None:
    engine = scheduler()
    for token in (11, 12):  # the second time its last prompt block is computed beside one that is known
        engine.add(one := job(8, 6, salt="same"))
        while busy(engine):
            step(engine, token)
    following = job(8, 8, salt="same")
    following.tokens = one.tokens[:]
    engine.add(following)
    assert step(engine) == [(3, 12, 2)]


@pytest.mark.parametrize("released", [False, True])
def test_what_a_failed_step_has_stored_is_not_found(released: bool) -> None:
    engine = scheduler(batch=8)
    bad = job(14, salt="same")
    engine.add(bad)
    step(engine)  # eight tokens, of which nothing was sampled: they may be the reason
    plan = planned(engine)
    if released:
        engine.release(bad)
    assert len(answered(engine, plan, failed=(0,))) == (not released)
    assert engine.load().blocks_used == engine.load().blocks_cached == 0
    engine.add(job(14, salt="same"))
    assert step(engine) == [(2, 0, 8)]


def test_what_was_sampled_from_before_a_failure_stays_known() -> None:
    engine, bad = scheduler(), job(7, 2, salt="same")
    engine.add(bad)
    step(engine)
    answered(engine, planned(engine), failed=(0,))
    assert (engine.load().blocks_used, engine.load().blocks_cached) == (0, 1)


def test_a_pending_token_that_fills_a_block_and_fails_is_not_found() -> None:
    engine, bad = scheduler(in_flight=2), job(7, 2, salt="same")
    engine.add(bad)
    first, second = planned(engine), planned(engine)  # the second fills a block, with a token that nobody knows yet
    answered(engine, first)
    answered(engine, second, failed=(0,))
    assert bad.state is SequenceState.ENDED and engine.load().blocks_cached == 1


# who gives way, and what it costs


def test_the_lowest_priority_is_preempted_and_of_these_the_latest_but_never_the_oldest() -> None:
    engine = scheduler(8)
    oldest, low, latest_low, normal = (job(8, priority=priority) for priority in (9, 5, 5, 0))
    added(engine, oldest, low, latest_low, normal)
    step(engine)
    step(engine)
    assert [each.preemptions for each in (oldest, low, latest_low, normal)] == [0, 1, 1, 0]
    while busy(engine):
        step(engine)
    assert oldest.preemptions == 0 and all(len(each.tokens) == 16 for each in (oldest, low, latest_low, normal))


@pytest.mark.parametrize("slots", [0, 20])
def test_a_preemption_is_counted_by_what_it_cost(slots: int) -> None:
    engine = scheduler(6, slots=slots)
    added(engine, job(8, 12), job(8, 12))
    while busy(engine):
        step(engine)
    kv = engine.load().kv
    assert engine.load().preemptions == 1
    assert (kv.preempted_swapped, kv.preempted_recomputed) == ((1, 0) if slots else (0, 1))
    assert (kv.spilled_blocks > 0, kv.returned_blocks > 0) == (slots > 0, slots > 0)
    assert kv.evicted_blocks > 0


def test_used_slots_are_those_of_used_blocks_and_wasted_are_those_without_a_token() -> None:
    engine = scheduler()
    added(engine, job(9), job(8))
    planned(engine)
    kv = engine.load().kv
    assert (kv.used_slots, kv.wasted_slots) == (20, 3)


def test_of_equal_prompts_that_are_to_land_one_lands_and_the_others_share_its_blocks() -> None:
    engine = scheduler(block_count=20)
    first, second, other, third = (job(10, landing=True, salt=salt) for salt in ("a", "a", "b", "a"))
    added(engine, first, second, other, third)
    assert engine.plan(1.0) is None
    assert engine.take_admitted() == [first, other], "the second waits for the first, and keeps nobody else waiting"
    engine.check_invariants()
    assert (engine.load().waiting, engine.load().running) == (4, 0) and engine.plan(1.0) is None
    engine.adopt(first, {0: [7]}, GREEDY, Limits(4))
    planned(engine)
    assert engine.take_admitted() == [second, third]
    assert [each.held_blocks for each in (first, second, third)] == [(0,), (2,), (2,)]
    assert second.blocks[0][:2] == first.blocks[0][:2]
    engine.check_invariants()


def test_when_a_shared_prompt_does_not_land_the_next_that_waited_for_it_lands() -> None:
    engine = scheduler(block_count=20)
    first, second, third = (job(10, landing=True, salt="a") for _ in range(3))
    added(engine, first, second, third)
    engine.plan(1.0)
    engine.release(third)  # one that waits may end as well
    engine.check_invariants()
    engine.release(first)
    engine.plan(1.0)
    assert engine.take_admitted() == [second] and second.held_blocks == (0,)
    engine.check_invariants()


def test_a_short_common_beginning_keeps_nobody_waiting() -> None:
    engine = scheduler(block_count=40)
    first, second = (job(40, landing=True, salt="a") for _ in range(2))
    second.tokens[8:] = array("I", [1] * 32)  # two blocks of ten are the same
    added(engine, first, second)
    engine.plan(1.0)
    assert engine.take_admitted() == [first, second]
