"""Admission: which sequence gets blocks next, and which can never get them."""

import pytest

from contracts.errors import CapacityError
from engine.blocks.finding import FoundPrefix
from engine.schedule.admission import BlockAdmission
from engine.schedule.sequence import Sequence, SequenceState
from tests.engine.schedule.scheduler_by_hand import added, busy, job, planned, scheduler, step


def test_a_shorter_prompt_does_not_pass_one_that_waits_for_blocks() -> None:
    engine = scheduler(20, batch=8)
    added(engine, job(60, hand_off=True))
    step(engine)
    added(engine, job(40, hand_off=True), job(4, hand_off=True))  # 15 of 20 blocks are taken, 10 and 1 wanted
    assert step(engine) == [(1, 8, 8)]


def test_a_more_urgent_prompt_without_room_holds_nobody_up() -> None:
    engine, calm, urgent = scheduler(10, batch=8), job(30, hand_off=True), job(30, hand_off=True)
    calm.due, urgent.due = 40.0, 3.0
    added(engine, calm)
    step(engine)
    added(engine, urgent)  # 8 of 10 blocks are taken
    assert step(engine) == [(1, 8, 8)]


def test_who_has_found_no_room_is_not_passed_by_another_tenant() -> None:
    engine, first = scheduler(20, batch=64), job(40, 4, hand_off=True, tenant="a")
    large = job(60, hand_off=True, tenant="b")
    added(engine, first)
    step(engine)  # 10 of 20 blocks are taken
    added(engine, large)
    assert engine.plan(1.0) is None
    small = [job(4, hand_off=True, tenant=tenant) for tenant in "abc" * 5]
    added(engine, *small)
    assert engine.plan(1.0) is None
    engine.release(first)
    plan = planned(engine)
    assert plan.works[0].sequence == large.id and len(plan.works) > 1


def test_no_more_than_max_sequences_run_or_land() -> None:
    engine = scheduler(sequences=2)
    landing, waiting = job(4, landing=True), job(4)
    added(engine, job(4), landing, waiting)
    step(engine)
    assert engine.load().running == 1 and not waiting.blocks
    engine.release(landing)
    assert step(engine) == [(1, 4, 1), (3, 0, 4)]


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (job(20, max_tokens=22), "41 tokens need 11 KV blocks, the whole pool has 10"),
        (job(41, hand_off=True), "41 tokens need 11 KV blocks, the whole pool has 10"),
        (job(41, landing=True), "41 tokens need 11 KV blocks, the whole pool has 10"),
        (job(60), "60 tokens and one more are longer than max_model_len = 60"),
        (job(5, max_tokens=0), "5 tokens leave nothing to emit: prompt and max_tokens end at 5"),
    ],
)
def test_what_can_never_fit_is_refused_with_both_numbers(sequence: Sequence, message: str) -> None:
    engine = scheduler(10, longest=60)
    with pytest.raises(CapacityError) as refused:
        engine.add(sequence)
    assert str(refused.value) == message
    assert not busy(engine) and sequence.id == 0


def test_a_head_that_does_not_fit_is_not_overtaken() -> None:
    engine = scheduler(10)
    added(engine, job(20), job(24), job(4))
    step(engine)
    assert [sequence.id for sequence in engine.take_admitted()] == [1]
    assert step(engine) == [(1, 20, 1)]


def test_a_landing_is_admitted_above_the_growth_reserve_only() -> None:
    engine = scheduler(10, reserve=3)
    landing = job(16, landing=True)
    added(engine, job(16), landing)
    step(engine)  # 4 blocks used, 6 free, 4 + 3 wanted
    assert not landing.blocks and engine.load().waiting == 1
    engine.release(engine.take_admitted()[0])
    assert engine.plan(1.0) is None
    assert engine.take_admitted() == [landing] and landing.state is SequenceState.LANDING


def test_the_reserve_does_not_lock_out_a_sequence_that_is_alone() -> None:
    engine = scheduler(10, reserve=9)
    engine.add(job(32))
    assert step(engine) == [(1, 0, 32)]


def test_nothing_lands_while_a_preempted_sequence_waits() -> None:
    engine = scheduler(6)
    first, second, landing = job(8), job(8), job(4, landing=True)
    added(engine, first, second)
    for _ in range(5):
        step(engine)  # 13 tokens want 4 blocks each
    engine.add(landing)
    step(engine)
    assert second.state is SequenceState.WAITING and second.preemptions == 1
    assert landing.state is SequenceState.WAITING and engine.load().blocks_used == 4


def test_each_sequence_is_reported_as_admitted_once() -> None:
    engine = scheduler(6)
    added(engine, job(8), job(8))
    reported = []
    while busy(engine):
        step(engine)
        reported += engine.take_admitted()
    assert engine.load().preemptions > 0
    assert [sequence.id for sequence in reported] == [1, 2]


def test_a_full_batch_costs_the_head_of_the_queue_no_look_into_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Sequence] = []
    find = BlockAdmission.find

    def looked(self: BlockAdmission, sequence: Sequence, step: int) -> FoundPrefix:
        looks.append(sequence)
        return find(self, sequence, step)

    monkeypatch.setattr(BlockAdmission, "find", looked)
    engine = scheduler(sequences=2)
    running, waiting = [job(8), job(8)], job(8)
    added(engine, *running, waiting)
    assert looks == [*running, waiting]  # once each, to know what there is to compute
    looks.clear()
    for _ in range(8):
        step(engine)
    assert looks == running and all(each.state is SequenceState.ENDED for each in running)
    step(engine)
    assert looks == [*running, waiting]
