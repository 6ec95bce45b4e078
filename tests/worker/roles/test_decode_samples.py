"""Tests several samples of a prompt: they land or are computed once, and are independent sequences from then on."""

import pytest

from contracts.ids import AttemptKey
from contracts.messages.handoff import Branch
from contracts.messages.job import AnyJob, PrefillJob
from contracts.messages.sampling import Limits, Sampling
from engine.schedule.sequence import SequenceState
from infra.redis.worker_load import HeldBlocks
from kvtransfer.events import BlocksGranted, BlocksRefused, Dropped, HandoffOver
from tests.engine.strict_executor import placed
from tests.worker.role_bench import Bench, Sevens
from tests.worker.roles.decode_handoffs import KEY, decode_worker, landed, short_job, wanted
from worker.events import Begin, Emit, Fail, Kill
from worker.roles.decode import DecodePolicy

THREE = {0: [3], 1: [4], 2: [5]}


def cancelled(sample: int, attempt: int = 1) -> Kill:
    return Kill(AttemptKey("r1", sample, attempt), "cancelled")


def failed(bench: Bench) -> list[tuple[int, str]]:
    return [(event.key.sample, event.failure.reason) for event in bench.heard(Fail)]


def tokens(bench: Bench) -> dict[int, list[int]]:
    """Collects what was emitted of each sample, in order."""
    emitted: dict[int, list[int]] = {}
    for each in [each for event in bench.heard(Emit) for each in event.emitted]:
        emitted[each.key.sample] = emitted.get(each.key.sample, []) + each.token_ids
    return emitted


def granted(bench: Bench, policy: DecodePolicy, *samples: int) -> None:
    policy.receive(wanted(*samples), 1.0)
    assert bench.step(policy) is None
    assert [event.key for event in bench.heard(BlocksGranted)] == [KEY]


def over(bench: Bench, policy: DecodePolicy) -> None:
    bench.scheduler.check_invariants()
    assert bench.blocks.used_count == 0 and not policy.busy() and bench.scheduler.load().waiting == 0


def test_all_samples_land_together_and_end_one_by_one() -> None:
    bench, policy = decode_worker()
    granted(bench, policy, 0, 1, 2)
    assert bench.blocks.used_count == 3
    policy.receive(landed(Limits(10, (9,)), THREE), 2.0)
    begun = [(event.emitted.key.sample, event.emitted.token_ids) for event in bench.heard(Begin)]
    assert begun == [(0, [3]), (1, [4]), (2, [5])]
    plan = bench.step(policy)
    assert plan is not None and [list(work.token_ids) for work in plan.works] == [[3], [4], [5]]
    assert bench.blocks.used_count == 5, "two whole blocks for all, and one for each"
    bench.executor = Sevens({1: 9})
    bench.step(policy)
    assert tokens(bench) == {0: [7, 7], 1: [7, 9], 2: [7, 7]}
    policy.receive(cancelled(0), 3.0)
    bench.run(policy)
    assert bench.heard(HandoffOver) == [HandoffOver(KEY)] and tokens(bench) == {2: [7] * 7}
    over(bench, policy)
    assert policy.load().handoffs == 1 and policy.load().prompt_tokens == 0 and not failed(bench)


@pytest.mark.parametrize("dead", [None, 0])
def test_first_tokens_are_repeated_with_their_scores_and_the_prompts_once(dead: int | None) -> None:
    bench, policy = decode_worker()
    granted(bench, policy, 0, 1)
    if dead is not None:
        policy.receive(cancelled(dead), 1.5)
    sampling, prompt = Sampling(1, logprobs=1, prompt_logprobs=1), placed([8, 9], 1, 1)
    going = [Branch(sample, [3 + sample], placed([3 + sample], 0, 1)) for sample in (0, 1)]
    policy.receive(landed(sampling=sampling, branches=going, prompt_scores=prompt), 2.0)
    begun = [event.emitted for event in bench.heard(Begin)]
    assert [each.scores for each in begun] == [placed(each.token_ids, 0, 1) for each in begun]
    assert [each.prompt_scores for each in begun] == ([prompt, None] if dead is None else [prompt])
    bench.step(policy)
    (emit,) = bench.heard(Emit)
    assert all(each.scores == placed([7], 1, 1) and each.prompt_scores is None for each in emit.emitted)


def test_a_short_paths_prompt_is_scored_with_the_first_token_of_one_sample() -> None:
    bench, policy = decode_worker()
    policy.receive(short_job(samples=(0, 1), sampling=Sampling(1, prompt_logprobs=0)), 1.0)
    bench.run(policy)
    emitted = [each for event in bench.heard(Emit) for each in event.emitted]
    prompts = [(each.key.sample, each.index) for each in emitted if each.prompt_scores is not None]
    assert prompts == [(0, 0)] and emitted[0].prompt_scores == placed(range(1, 20), 1, 0)
    assert all(each.scores is None for each in emitted)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_when_all_are_killed_while_landing_their_blocks_wait_for_the_transfer(order: tuple[int, ...]) -> None:
    for ending in (Dropped(KEY, "cancelled"), landed(branches=THREE)):
        bench, policy = decode_worker()
        granted(bench, policy, 0, 1, 2)
        assert policy.load().held == HeldBlocks(reserved=3)
        for sample in order:
            policy.receive(cancelled(sample), 1.0)
        bench.scheduler.check_invariants()
        assert bench.blocks.used_count == 3, "bytes may still land in them"
        assert policy.load().held == HeldBlocks(quarantined=3)
        policy.receive(ending, 2.0)
        assert policy.load().held == HeldBlocks()
        assert bench.heard(HandoffOver) == ([] if isinstance(ending, Dropped) else [HandoffOver(KEY)])
        assert bench.run(policy) == 0 and not bench.said
        over(bench, policy)


@pytest.mark.parametrize("reason", ["capacity", "malformed"])
def test_an_adoption_that_fails_fails_for_every_living_sample(reason: str) -> None:
    bench, policy = decode_worker(blocks=5)
    granted(bench, policy, 0, 1, 2)
    policy.receive(cancelled(0), 1.0)
    bad = reason == "malformed"
    policy.receive(landed(Limits(5 if bad else 100), {**THREE, 2: [10**6]} if bad else THREE), 2.0)
    assert [event.emitted.key.sample for event in bench.heard(Begin)] == [1, 2], "an end needs a beginning"
    assert failed(bench) == [(1, reason), (2, reason)]
    assert bench.heard(HandoffOver) == [HandoffOver(KEY)]
    over(bench, policy)


def test_the_short_path_computes_the_prompt_once_for_all() -> None:
    bench, policy = decode_worker(executor=Sevens({1: 9}))
    policy.receive(short_job(10, samples=(0, 1, 2), limits=Limits(3, (9,))), 1.0)
    bench.run(policy, 2.0)
    assert policy.load().prompt_tokens == 10 and policy.load().kv.forks == 1, "that one goes on beside the stem"
    emitted = [each for event in bench.heard(Emit) for each in event.emitted]
    first = emitted[:3]
    assert [(each.key.sample, each.token_ids) for each in first] == [(0, [7]), (1, [9]), (2, [7])]
    assert [each.finish for each in first] == [None, "stop", None]
    assert all(each.stages is not None and each.stages.queue_ms == 1500.0 for each in first)
    ends = [(each.key.sample, each.finish) for each in emitted if each.finish]
    assert ends == [(1, "stop"), (0, "length"), (2, "length")]
    assert not failed(bench) and not bench.heard(HandoffOver)
    over(bench, policy)


def test_what_is_refused_is_refused_for_every_sample() -> None:
    bench, policy = decode_worker()
    both = [(0, 1), (0, 1), tuple(range(9))]
    jobs: list[AnyJob] = [
        PrefillJob(
            **{name: getattr(short_job(samples=(0, 1)), name) for name in short_job().__struct_fields__},
            decode_epoch="me",
            decode_address="tcp://x",
        ),
        short_job(samples=(0, 1), token_ids=[10**6]),
        short_job(samples=tuple(range(9))),
    ]
    for job, reason, samples in zip(jobs, ("misdirected", "malformed", "capacity"), both, strict=True):
        policy.receive(job, 1.0)
        assert failed(bench) == [(sample, reason) for sample in samples]
    policy.receive(wanted(*range(9)), 1.0)
    assert [event.reason for event in bench.heard(BlocksRefused)] == ["capacity"]
    over(bench, policy)


def test_an_open_that_comes_behind_a_higher_attempt_is_refused() -> None:
    bench, policy = decode_worker()
    policy.receive(short_job(11, prompt_tokens=10, attempt=2), 1.0)
    policy.receive(wanted(0, handoff=6), 2.0)
    assert [(event.key.handoff, event.reason) for event in bench.heard(BlocksRefused)] == [(6, "superseded")]


def test_failures_and_deadlines_are_reported_for_each_sample() -> None:
    for trouble in ("engine", "deadline", "draining"):
        executor = Sevens()
        bench, policy = decode_worker(executor=executor)
        policy.receive(short_job(20, samples=(0, 1, 2)), 1.0)
        bench.step(policy)
        policy.receive(cancelled(0), 1.0)
        if trouble == "engine":
            executor.fail.add(1)
            bench.step(policy)
        elif trouble == "deadline":
            policy.expired(bench.scheduler.expired(101.0), 101.0)
        else:
            policy.leave("draining")
        assert failed(bench) == [(1, trouble), (2, trouble)]
        over(bench, policy)


def test_released_branches_hold_nothing_while_the_others_wait_for_room() -> None:
    bench, policy = decode_worker(blocks=7)
    policy.receive(short_job(16, request="r2", limits=Limits(6)), 1.0)
    bench.step(policy)
    policy.receive(wanted(0, 1, 2), 1.0)
    policy.receive(cancelled(0), 1.0)
    policy.receive(cancelled(2), 1.0)
    states = [each.state for each in bench.scheduler.added if each.key.request == "r1"]
    assert states == [SequenceState.WAITING, SequenceState.BRANCH, SequenceState.ENDED]
    bench.run(policy)
    assert len(bench.heard(BlocksGranted)) == 1
    policy.receive(landed(Limits(2), THREE), 2.0)
    assert [event.emitted.key.sample for event in bench.heard(Begin)] == [1]
    bench.run(policy)
    over(bench, policy)


def test_a_job_of_the_past_does_not_take_the_place_of_a_higher_attempt_that_lands() -> None:
    """Meets both in the policy, for a landing prompt has no entry in the ledger that would keep the job out."""
    bench, policy = decode_worker()
    policy.receive(wanted(1, attempt=2), 1.0)
    bench.step(policy)
    policy.receive(short_job(samples=(0, 1)), 1.0)
    assert failed(bench) == [(1, "superseded")]
    policy.receive(landed(Limits(3), {1: [4]}), 2.0)
    bench.run(policy)
    assert tokens(bench) == {0: [7] * 10, 1: [7, 7]} and not failed(bench)
    over(bench, policy)


def test_a_job_of_the_past_that_is_superseded_as_a_whole_is_not_begun() -> None:
    bench, policy = decode_worker()
    policy.receive(wanted(0, attempt=2), 1.0)
    policy.receive(short_job(), 1.0)
    assert failed(bench) == [(0, "superseded")] and len(bench.scheduler.added) == 1
    policy.receive(Dropped(KEY, "cancelled"), 1.0)
    over(bench, policy)
