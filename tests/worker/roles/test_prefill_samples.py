"""Tests several samples of a prompt: they have one pass, one handoff, and each an end of its own."""

import pytest

from contracts.ids import AttemptKey
from contracts.messages.gateway import STATE_HANDING_OFF
from contracts.messages.handoff import Branch
from contracts.messages.sampling import Limits, Sampling
from kvtransfer.events import AbortHandoff, CommitHandoff, LayerReady, OpenHandoff, Unpinned
from tests.engine.strict_executor import placed
from tests.worker.role_bench import Bench, Sevens
from tests.worker.roles.prefill_jobs import closed, job, prefill_worker, whole
from worker.events import Emit, Fail, Kill, Phase
from worker.roles.prefill import PrefillPolicy

STOP_TOKEN = 9
STOPPING = Limits(10, (STOP_TOKEN,))


def key(sample: int, number: int = 1, attempt: int = 1) -> AttemptKey:
    return AttemptKey(f"r{number}", sample, attempt)


def cancelled(sample: int, attempt: int = 1) -> Kill:
    return Kill(key(sample, attempt=attempt), "cancelled")


def handed_over(bench: Bench, policy: PrefillPolicy, handoff: int = 1) -> None:
    policy.receive(closed(handoff, "accepted"), 2.0)
    policy.receive(Unpinned(handoff), 2.0)
    bench.scheduler.check_invariants()
    assert bench.blocks.used_count == 0 and not policy.busy()


def failed(bench: Bench) -> list[tuple[int, str]]:
    return [(event.key.sample, event.failure.reason) for event in bench.heard(Fail)]


def test_all_samples_share_one_pass_and_one_handoff() -> None:
    bench, policy = prefill_worker(executor=Sevens({0: 3, 1: 4, 2: 5}))
    policy.receive(job(1, samples=(0, 1, 2)), 1.0)
    assert bench.run(policy, 2.0) == 1
    assert policy.load().prompt_tokens == 10, "the prompt is computed once"
    (opened,) = bench.heard(OpenHandoff)
    assert (opened.handoff, opened.samples, len(opened.blocks[0])) == (1, (0, 1, 2), 3)
    (commit,) = bench.heard(CommitHandoff)
    assert commit.handoff == 1
    assert commit.branches == [Branch(0, [3]), Branch(1, [4]), Branch(2, [5])]
    (emit,) = bench.heard(Emit)
    assert [(each.key.sample, each.token_ids) for each in emit.emitted] == [(0, [3]), (1, [4]), (2, [5])]
    states = [(event.key.sample, event.state) for event in bench.heard(Phase)]
    assert states == [(sample, state) for state in ("prefill", STATE_HANDING_OFF) for sample in range(3)]
    assert bench.blocks.used_count == 3
    handed_over(bench, policy)
    assert not failed(bench) and policy.load().handoffs == 1


def test_scores_go_with_their_tokens_and_the_prompts_with_one_sample() -> None:
    """To the gateway, and to the decode worker, which repeats first tokens; there with the first that goes on."""
    for stopping in (None, 0):
        bench, policy = prefill_worker(executor=Sevens({} if stopping is None else {stopping: STOP_TOKEN}))
        sampling = Sampling(1, logprobs=2, prompt_logprobs=1)
        policy.receive(job(1, samples=(0, 1), limits=STOPPING, sampling=sampling), 1.0)
        bench.run(policy)
        (emit,) = bench.heard(Emit)
        prompt = placed(range(1, 10), 1, 1)
        assert [each.scores for each in emit.emitted] == [placed(each.token_ids, 0, 2) for each in emit.emitted]
        assert [each.prompt_scores for each in emit.emitted] == [prompt, None]
        (commit,) = bench.heard(CommitHandoff)
        assert [branch.scores for branch in commit.branches] == [placed([7], 0, 2)] * len(commit.branches)
        assert commit.prompt_scores == (prompt if stopping is None else None)


def test_a_handoff_that_no_sample_needs_is_done() -> None:
    bench, policy = prefill_worker(executor=Sevens({0: STOP_TOKEN, 1: STOP_TOKEN}))
    policy.receive(job(1, samples=(0, 1), limits=STOPPING), 1.0)
    bench.run(policy)
    assert bench.heard(AbortHandoff) == [AbortHandoff(1, "done")] and not bench.heard(CommitHandoff)
    policy.receive(closed(1, "done"), 2.0)
    policy.receive(Unpinned(1), 2.0)
    assert bench.blocks.used_count == 0 and not policy.busy() and not failed(bench)


def test_the_last_kill_aborts_the_handoff() -> None:
    bench, policy = prefill_worker()
    policy.receive(job(1, tokens=40, samples=(0, 1)), 1.0)
    bench.step(policy)
    for sample in (0, 1):
        assert not bench.heard(AbortHandoff)
        policy.receive(cancelled(sample), 1.0)
    assert bench.heard(AbortHandoff) == [AbortHandoff(1, "cancelled")]
    assert bench.step(policy) is None
    policy.receive(closed(1, "failed", "cancelled"), 2.0)
    policy.receive(Unpinned(1), 2.0)
    assert bench.blocks.used_count == 0 and not failed(bench) and not policy.busy()


def test_when_all_are_killed_after_the_commit_the_handoff_is_aborted() -> None:
    bench, policy = prefill_worker()
    policy.receive(job(1, samples=(0, 1)), 1.0)
    bench.run(policy)
    for sample in (0, 1):
        policy.receive(cancelled(sample), 1.0)
    assert bench.heard(AbortHandoff) == [AbortHandoff(1, "cancelled")]
    handed_over(bench, policy)  # it had been accepted meanwhile
    assert not failed(bench) and policy.load().handoffs == 0


@pytest.mark.parametrize("trouble", ["engine", "deadline", "grant_deadline", "draining"])
def test_a_failure_is_reported_for_every_sample_that_is_here(trouble: str) -> None:
    executor = Sevens()
    bench, policy = prefill_worker(executor=executor)
    policy.receive(job(1, tokens=26, samples=(0, 1, 2)), 1.0)
    bench.step(policy)
    policy.receive(cancelled(0), 1.0)
    if trouble == "engine":
        executor.fail.add(1)
        bench.step(policy)
    elif trouble == "deadline":
        policy.expired(bench.scheduler.expired(101.0), 101.0)
    elif trouble == "draining":
        policy.leave("draining")
    else:
        policy.receive(closed(1, "failed", trouble), 1.0)
    assert failed(bench) == [(1, trouble), (2, trouble)]
    aborted = bench.heard(AbortHandoff)
    assert [event.reason for event in aborted] == ([trouble] if trouble != "grant_deadline" else [])
    assert bench.run(policy) == 0
    policy.receive(closed(1, "failed", trouble), 1.0)
    policy.receive(Unpinned(1), 2.0)
    assert bench.blocks.used_count == 0 and not policy.busy() and not failed(bench)


def test_what_is_refused_is_refused_for_every_sample() -> None:
    bench, policy = prefill_worker()
    for submitted in (job(1, samples=(0, 1), prompt_tokens=0), whole(job(1, samples=(0, 1), prompt_tokens=0))):
        policy.receive(submitted, 1.0)
        assert failed(bench) == [(0, "malformed"), (1, "malformed")]
    policy.receive(job(1, samples=tuple(range(9))), 1.0)
    assert failed(bench) == [(sample, "capacity") for sample in range(9)], "8 run at once here"
    assert not policy.busy()


def test_waiting_kv_counts_once_for_all_samples() -> None:
    bench, policy = prefill_worker(blocks=33, waiting_share=0.25)  # 8 blocks for one peer
    policy.receive(job(1, tokens=16, samples=(0, 1, 2)), 1.0)
    policy.receive(job(2, tokens=16, samples=(0, 1, 2)), 1.0)
    bench.run(policy)
    assert [event.handoff for event in bench.heard(OpenHandoff)] == [1, 4], "4 blocks each, not 12"


def test_what_is_killed_in_its_peer_s_line_is_never_computed() -> None:
    bench, policy = prefill_worker(blocks=33, waiting_share=0.25)
    policy.receive(job(1, tokens=20), 1.0)
    policy.receive(job(2, tokens=20, samples=(0, 1, 2)), 1.0)
    policy.receive(job(3, tokens=20), 1.0)
    policy.receive(job(4, tokens=12), 1.0)
    policy.receive(Kill(key(0, 2), "cancelled"), 1.0)
    policy.receive(Kill(key(0, 3), "cancelled"), 1.0)
    bench.run(policy)
    assert policy.load().waiting == 2
    policy.receive(closed(1, "accepted"), 2.0)
    bench.run(policy)
    assert [event.samples for event in bench.heard(OpenHandoff)] == [(0,), (1, 2), (0,)]
    assert [each.key for each in bench.scheduler.added] == [key(0), key(1, 2), key(2, 2), key(0, 4)]


def test_a_head_that_is_killed_lets_the_next_in_line_go_on() -> None:
    bench, policy = prefill_worker(blocks=33, waiting_share=0.25)
    for number, tokens in enumerate((20, 20, 12), 1):
        policy.receive(job(number, tokens=tokens), 1.0)
    policy.receive(Kill(key(0, 2), "cancelled"), 1.0)
    bench.run(policy)
    assert [event.job.request for event in bench.heard(OpenHandoff)] == ["r1", "r3"]


@pytest.mark.parametrize("together", [True, False])
def test_a_common_prompt_is_computed_once_and_handed_off_whole_each_time(together: bool) -> None:
    bench, policy = prefill_worker()
    policy.receive(job(1, tokens=12), 1.0)
    if not together:
        bench.run(policy)
        policy.receive(closed(1, "accepted"), 2.0)
        policy.receive(Unpinned(1), 2.0)
        bench.said.clear()
    policy.receive(job(2, tokens=12), 1.0)
    policy.receive(job(3, tokens=12, salt="somebody else's"), 1.0)
    bench.run(policy)
    found = 8 if together else 11  # a block of the same step is shared as a whole, or not at all
    assert policy.load().prompt_tokens == 12 + (12 - found) + 12
    assert policy.load().kv.found_tokens == found
    stages = {commit.handoff: commit.stages for commit in bench.heard(CommitHandoff)}
    assert (stages[2].cached_tokens, stages[3].cached_tokens) == (found, 0)
    written: dict[tuple[int, int], int] = {}
    for event in bench.heard(LayerReady):
        written[event.handoff, event.layer] = event.upto
    assert written[2, 0] == written[2, 1] == 3, "every block of every layer may leave, found or computed"
    opened = {event.handoff: event.blocks[0] for event in bench.heard(OpenHandoff)}
    assert not set(opened[2]) & set(opened[3]), "of two tenants"
    if together:
        assert opened[1][:2] == opened[2][:2]
    for number in (1, 2, 3):
        if number in opened:
            policy.receive(closed(number, "accepted"), 2.0)
            policy.receive(Unpinned(number), 2.0)
    assert bench.blocks.used_count == 0 and policy.load().blocks_cached > 0


def test_a_retry_counts_cached_tokens_of_the_prompt_only() -> None:
    bench, policy = prefill_worker()
    policy.receive(job(1, tokens=13), 1.0)
    bench.run(policy)
    policy.receive(job(1, tokens=13, prompt_tokens=5, attempt=2), 1.0)
    bench.run(policy)
    assert [commit.stages.cached_tokens for commit in bench.heard(CommitHandoff)] == [0, 5]
