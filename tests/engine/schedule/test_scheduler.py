"""Scheduler: each rule of batches, ends, overlap, handoffs and deadlines as one small case."""

import subprocess
import sys

import pytest

from contracts.errors import CapacityError, IllegalMove
from contracts.messages.sampling import Limits
from engine.blocks.manager import BlockManager
from engine.plan import GrammarRefusal, Proposal, StepResult
from engine.schedule.chunking import Chunking
from engine.schedule.progress import NON_FINITE, NONE_LEFT, SequenceProgress
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import SequenceState
from engine.schedule.speculation import Speculation
from engine.speculation.proposers.proposer import DraftedSequence
from tests.engine.blocks.test_manager import spec
from tests.engine.schedule.scheduler_by_hand import GREEDY, added, answered, busy, job, planned, scheduler, step
from tests.waiting import DEADLINE_S


def test_scheduling_loads_neither_torch_nor_zmq() -> None:
    code = (
        "import engine.schedule.scheduler, sys; "
        "print([name for name in ('torch', 'zmq', 'redis') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    assert done.stdout.strip() == "[]"


def test_decodes_come_first_and_chunks_take_what_is_left() -> None:
    engine = scheduler(batch=8)
    added(engine, job(4), job(3), job(20))
    assert step(engine) == [(1, 0, 4), (2, 0, 3), (3, 0, 1)]
    assert step(engine) == [(1, 4, 1), (2, 3, 1), (3, 1, 6)]


def test_a_long_prompt_leaves_a_share_of_the_steps_to_shorter_ones() -> None:
    engine, long = scheduler(batch=8), job(40, hand_off=True)
    engine.add(long)
    assert step(engine) == [(1, 0, 8)]
    added(engine, job(6, hand_off=True), job(3, hand_off=True), job(50, hand_off=True))
    assert step(engine) == [(1, 8, 4), (3, 0, 3), (2, 0, 1)], "the shortest comes first, and nobody longer"
    assert step(engine) == [(1, 12, 4), (2, 1, 4)]
    assert step(engine) == [(2, 5, 1), (1, 16, 7)], "it leaves no more than they take"
    assert step(engine) == [(1, 23, 8)], "nobody longer passes"


def test_the_most_urgent_prompt_is_computed_first() -> None:
    engine, calm, urgent = scheduler(batch=8), job(60, hand_off=True), job(20, hand_off=True)
    calm.due, urgent.due = 40.0, 3.0
    engine.add(calm)
    assert step(engine) == [(1, 0, 8)]
    engine.add(urgent)
    assert [step(engine) for _ in range(3)] == [[(2, 0, 8)], [(2, 8, 8)], [(2, 16, 4), (1, 8, 4)]]


def test_a_tenants_prompt_in_progress_is_not_passed_by_anothers_burst() -> None:
    engine, long = scheduler(5000, batch=512, sequences=500, longest=5000), job(4096, hand_off=True, tenant="quiet")
    engine.add(long)
    step(engine)
    for _ in range(40):
        added(engine, *[job(256, hand_off=True, tenant="flood") for _ in range(3)])
        step(engine)
        if long.planned == 4096:
            return
    raise AssertionError("it had to have half of the steps")


def test_a_flood_hardly_lengthens_the_step_of_those_who_are_served_whole() -> None:
    engine = scheduler(5000, batch=512, sequences=500, longest=5000)
    added(engine, *[job(256, hand_off=True, tenant="flood") for _ in range(8)])
    assert step(engine) == [(1, 0, 256), (2, 0, 256)], "who is alone has the whole step"
    added(engine, job(200, hand_off=True, tenant="light"), job(100, hand_off=True, tenant="other"))
    assert step(engine) == [(9, 0, 200), (10, 0, 100), (3, 0, 75)]
    assert step(engine) == [(3, 75, 181), (4, 0, 256), (5, 0, 75)]


def test_a_sequence_s_tables_stand_in_the_plan_themselves() -> None:
    engine, one = scheduler(), job(6)
    engine.add(one)
    assert planned(engine).works[0].blocks is one.blocks  # a step copies no tables


def test_of_several_tokens_those_after_the_end_are_discarded() -> None:
    engine = scheduler()
    stopping, going = job(4, stop=9), job(4)
    added(engine, stopping, going)
    plan = planned(engine)
    progress = engine.apply(StepResult(plan.step, [[3, 9, 5], [3, 4, 5]]), 2.0)
    assert progress == [SequenceProgress(stopping, 0, [3, 9], "stop"), SequenceProgress(going, 0, [3, 4, 5])]
    assert step(engine) == [(2, 4, 3)]  # their KV is computed as a chunk


def test_a_sequence_without_a_token_left_ends_and_its_kv_stays_good() -> None:
    """Its logits are finite, so whoever shares its prompt finds the KV."""
    engine = scheduler()
    stuck, good = job(4), job(5)
    added(engine, stuck, good)
    plan = planned(engine)
    progress = engine.apply(StepResult(plan.step, [[], [1]], none_left=[0]), 2.0)
    engine.check_invariants()
    assert progress == [SequenceProgress(stuck, 0, [], failed=NONE_LEFT), SequenceProgress(good, 0, [1])]
    assert stuck.state is SequenceState.ENDED and engine.load().blocks_cached == 1


def test_logits_that_are_not_finite_leave_no_kv_whatever_else_is_wrong() -> None:
    engine, bad = scheduler(), job(4)
    engine.add(bad)
    plan = planned(engine)
    result = StepResult(
        plan.step, [[]], failed=[0], none_left=[0], refused={0: GrammarRefusal("its masks did not come")}
    )
    assert engine.apply(result, 2.0) == [SequenceProgress(bad, 0, [], failed=NON_FINITE)]
    engine.check_invariants()
    assert engine.load().blocks_cached == 0


def test_no_step_is_planned_past_an_end_that_is_certain() -> None:
    engine = scheduler(in_flight=2)
    added(engine, job(6, max_tokens=1), job(5, hand_off=True))
    planned(engine)
    assert engine.plan(1.0) is None


def test_the_result_of_another_step_is_refused() -> None:
    engine = scheduler()
    with pytest.raises(IllegalMove, match="step 1"):
        engine.apply(StepResult(1, []), 1.0)
    engine.add(job(3))
    planned(engine)
    with pytest.raises(IllegalMove, match="step 7"):
        engine.apply(StepResult(7, [[1]]), 1.0)


@pytest.mark.parametrize(
    ("tokens", "limits", "error"),
    [
        ([], Limits(4), IllegalMove),
        ([42], Limits(1), CapacityError),
        ([42], Limits(34), CapacityError),
    ],
)
def test_an_adoption_that_cannot_go_on_changes_nothing(
    tokens: list[int], limits: Limits, error: type[Exception]
) -> None:
    engine, landing = scheduler(10), job(8, landing=True)
    engine.add(landing)
    engine.plan(1.0)
    with pytest.raises(error):
        engine.adopt(landing, {0: tokens}, GREEDY, limits)
    engine.check_invariants()
    assert landing.state is SequenceState.LANDING and landing.landing and len(landing.tokens) == 8
    engine.release(landing)
    assert engine.load().blocks_used == 0


def test_only_a_landing_sequence_is_adopted() -> None:
    engine, one = scheduler(), job(8)
    engine.add(one)
    with pytest.raises(IllegalMove):
        engine.adopt(one, {0: [1]}, GREEDY, Limits(4))
    with pytest.raises(IllegalMove):
        engine.add(one)


def test_a_sequence_that_ended_before_it_was_reported_is_not_opened() -> None:
    engine, one = scheduler(), job(8, hand_off=True)
    engine.add(one)
    engine.plan(1.0)
    engine.release(one)
    assert engine.take_admitted() == []


def test_expired_sequences_are_named_once_their_deadline_has_passed() -> None:
    engine, one = scheduler(), job(8)
    engine.add(one)
    assert engine.expired(49.9) == [] and engine.next_deadline == 50.0
    assert engine.expired(50.0) == [one]
    engine.release(one)
    assert engine.expired(60.0) == [] and engine.next_deadline == float("inf")


def test_what_has_landed_after_its_deadline_expires_as_well() -> None:
    """Its service leaves an expired landing to the transfer, which may have ended well in the same moment."""
    engine, one = scheduler(), job(8, landing=True)
    engine.add(one)
    engine.plan(1.0)
    assert engine.expired(50.0) == [one] and engine.next_deadline == float("inf")
    engine.adopt(one, {0: [1]}, GREEDY, Limits(9))
    assert engine.next_deadline == 50.0 and engine.expired(50.1) == [one]


def test_load_counts_prompt_and_output_tokens() -> None:
    engine = scheduler(batch=8)
    added(engine, job(10, max_tokens=3), job(4, landing=True))
    for _ in range(3):
        step(engine)
    load = engine.load()
    assert (load.steps, load.prompt_tokens, load.output_tokens, load.preemptions) == (3, 10, 2, 0)
    assert (load.running, load.waiting, load.blocks_total, load.blocks_used) == (1, 1, 100, 4)


def test_prompts_take_what_decodes_leave_of_a_steps_time() -> None:
    """Steps of a second each: faster than was known. Alone, a prompt has the whole step."""
    chunking = Chunking(target=21.0, tokens_per_second=1.0)
    of = scheduler(batch=64, chunking=chunking)
    added(of, job(30))
    sizes, rooms = [], []
    for now in range(4):
        if now == 1:
            added(of, job(100))
        rooms.append(chunking.budget(63))
        plan = of.plan(now)
        assert plan is not None
        sizes.append([len(work.token_ids) for work in plan.works])
        of.apply(StepResult(plan.step, [[1] if work.sampling else [] for work in plan.works]), now + 1.0)
    assert rooms == sorted(rooms) and 21 < rooms[1] < rooms[2] < rooms[3] < 63
    assert sizes == [[30], [1, rooms[1]], [1, rooms[2]], [1, min(rooms[3], 100 - rooms[1] - rooms[2])]]


def test_a_step_that_waited_for_the_one_before_counts_from_its_end() -> None:
    chunking = Chunking(target=21.0, tokens_per_second=1.0)
    of = scheduler(batch=64, chunking=chunking, in_flight=2)
    added(of, job(128, 1))
    plans = [of.plan(0.0), of.plan(0.0)]
    for plan, now in zip(plans, (64.0, 128.0), strict=True):
        assert plan is not None
        of.apply(StepResult(plan.step, [[1] if work.sampling else [] for work in plan.works]), now)
    assert chunking.budget(64) == 21  # a second for each token of both


def test_steps_are_counted_by_their_tokens() -> None:
    engine = scheduler(batch=8)
    added(engine, job(12, max_tokens=3))
    while busy(engine):
        step(engine)
    told = engine.load().step_tokens
    # 8 of the prompt; 4 of it and the first token; the second; the third: vLLM's bounds are 1, 8, 16 …
    assert told.steps[:3] == (2, 2, 0) and sum(told.steps) == engine.load().steps == 4
    assert told.tokens == 12 + 3


class Guessing:
    """A proposer that guesses the same tokens for every text."""

    in_engine = False

    def __init__(self, *tokens: int) -> None:
        self._tokens = list(tokens)

    def propose(self, sequence: DraftedSequence, max_drafts: int) -> Proposal:
        return Proposal(self._tokens[:max_drafts])

    def ended(self, sequence: DraftedSequence) -> None:
        """Does nothing: no text is kept."""


def test_guesses_behind_the_end_are_no_part_of_what_the_cache_learns() -> None:
    """All guesses come true, and the first of them ends the text: the blocks that it fills end with it, too."""
    stop, guesses = 9, 4
    blocks = BlockManager(spec(4), [100], 0)
    of = Scheduler(
        blocks,
        SchedulerLimits(max_batch_tokens=64, max_sequences=8, max_model_len=1000, growth_reserve=[0]),
        speculation=Speculation(blocks, Guessing(stop, 5, 5, 5), guesses),
    )
    sequence = job(5, 100, stop=stop)
    of.add(sequence)
    answered(of, planned(of))
    plan = planned(of)
    (work,) = plan.works
    assert work.proposed == (stop, 5, 5, 5)
    (progress,) = of.apply(StepResult(plan.step, [[stop, 5, 5, 5, 1]], accepted={0: [0, 1, 2, 3]}), 2.0)
    assert (progress.tokens, progress.finish) == ([stop], "stop")
    assert sequence.computed == len(sequence.tokens) - 1
    of.check_invariants()
