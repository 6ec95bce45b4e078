"""Tests a prefill worker's way with a sequence, event by event."""

from contracts.ids import AttemptKey
from contracts.messages.gateway import STATE_HANDED_OFF, STATE_HANDING_OFF
from contracts.messages.handoff import Branch
from contracts.messages.sampling import Limits
from infra.redis.worker_load import HeldBlocks
from kvtransfer.events import AbortHandoff, CommitHandoff, LayerReady, OpenHandoff, Unpinned
from tests.worker.roles.prefill_jobs import closed, job, prefill_worker, whole
from worker.events import Emit, Fail, Kill, Phase


def test_a_sequence_opens_streams_commits_and_is_freed() -> None:
    bench, policy = prefill_worker()
    policy.receive(job(1, tokens=26, priority=3, salt="tenant"), 1.0)
    (sequence,) = bench.scheduler.added
    assert (sequence.prompt.priority, sequence.prompt.salt) == (3, "tenant")
    bench.step(policy)  # 16 of 26 tokens
    (opened,) = bench.heard(OpenHandoff)
    assert len(opened.blocks[0]) == 7
    written = bench.heard(LayerReady)
    assert written == [LayerReady(1, 0, 0, 4), LayerReady(1, 0, 1, 4)]
    assert not bench.heard(Emit)
    bench.step(policy)
    whole = [LayerReady(1, 0, 0, 7), LayerReady(1, 0, 1, 7)]  # the last, part-filled block too
    assert bench.heard(LayerReady) == whole
    (emit,) = bench.heard(Emit)
    assert emit.emitted[0].token_ids == [7] and emit.emitted[0].finish is None
    (commit,) = bench.heard(CommitHandoff)
    assert (commit.handoff, commit.branches) == (1, [Branch(0, [7])])
    assert commit.computed_at == bench.life.clock.local(1.0)
    assert bench.heard(Phase)[-1].state == STATE_HANDING_OFF, "the decode worker may not even know of it"
    assert bench.blocks.used_count == 7 and policy.busy()
    assert policy.load().held == HeldBlocks(pinned=7)
    policy.receive(closed(1, "accepted"), 2.0)
    assert [phase.state for phase in bench.heard(Phase)] == [STATE_HANDED_OFF]
    assert bench.blocks.used_count == 7, "frames may still be read"
    assert policy.load().held == HeldBlocks(quarantined=7)
    policy.receive(Unpinned(1), 2.0)
    assert bench.blocks.used_count == 0 and not policy.busy()
    load = policy.load()
    assert (load.handoffs, load.handoff_bytes, load.held) == (1, 640, HeldBlocks())
    assert not bench.heard(Fail) and not bench.heard(AbortHandoff)


def test_a_first_token_that_is_the_last_needs_no_handoff() -> None:
    bench, policy = prefill_worker()
    policy.receive(job(1, limits=Limits(1)), 1.0)
    bench.step(policy)
    assert bench.heard(Emit)[0].emitted[0].finish == "length"
    assert not bench.heard(OpenHandoff) and bench.blocks.used_count == 0


def test_a_handoff_that_fails_is_reported() -> None:
    bench, policy = prefill_worker()
    policy.receive(job(1), 1.0)
    bench.step(policy)
    policy.receive(closed(1, "failed", "grant_deadline"), 2.0)
    policy.receive(Unpinned(1), 2.0)
    (fail,) = bench.heard(Fail)
    assert fail.failure.reason == "grant_deadline" and fail.failure.retryable
    assert bench.blocks.used_count == 0


def test_prompts_for_a_blocked_peer_wait_and_others_pass() -> None:
    bench, policy = prefill_worker(blocks=33, waiting_share=0.25)  # 8 blocks for one peer
    for number in (1, 2, 3):
        policy.receive(job(number, tokens=20, peer="slow"), 1.0)  # 5 blocks each
    policy.receive(job(4, tokens=12, peer="quick"), 1.0)
    bench.run(policy)
    assert [event.job.request for event in bench.heard(OpenHandoff)] == ["r1", "r4"]
    assert policy.load().waiting == 2
    policy.receive(closed(1, "accepted"), 2.0)
    policy.receive(Unpinned(1), 2.0)
    policy.receive(Kill(AttemptKey("r3", 0, 1), "cancelled"), 2.0)
    bench.run(policy)
    assert [event.job.request for event in bench.heard(OpenHandoff)] == ["r2"]


def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    bench, policy = prefill_worker(blocks=4)
    policy.receive(job(1, tokens=100), 1.0)
    (fail,) = bench.heard(Fail)
    assert (
        fail.failure.reason == "capacity"
        and not fail.failure.retryable
        and "25" in fail.failure.message
        and "3" in fail.failure.message
    )
    assert not policy.busy()


def test_decode_workers_that_have_no_room_for_long_leave_some_for_the_next() -> None:
    bench, policy = prefill_worker(blocks=33, waiting_share=0.5)
    names = [f"{peer}{number}" for number in range(4) for peer in "abc"]
    for at, name in enumerate(names):
        policy.receive(job(at, tokens=16, peer=name[0], request=name, salt=f"{at:032x}"), 1.0)
    while bench.step(policy) is not None:
        pass
    opened = [each.job.request for each in bench.heard(OpenHandoff)]
    assert opened == ["a0", "b0", "c0", "a1", "b1", "c1"], "four blocks each, and at most ten for one of three"


def test_a_deadline_is_reported() -> None:
    bench, policy = prefill_worker()
    for submitted in (job(1), whole(job(2))):
        policy.receive(submitted, 1.0)
    policy.expired(bench.scheduler.expired(101.0), 101.0)
    assert {event.failure.reason for event in bench.heard(Fail)} == {"deadline"}
    assert bench.blocks.used_count == 0 and not policy.busy()


def test_a_whole_request_is_answered_here_beside_one_that_is_handed_over() -> None:
    bench, policy = prefill_worker()
    policy.receive(whole(job(1, samples=(0, 1), limits=Limits(3))), 1.0)
    policy.receive(job(2), 1.0)
    bench.run(policy)
    emitted = [each for event in bench.heard(Emit) for each in event.emitted]
    told = [(each.key.sample, each.index, each.finish) for each in emitted if each.key.request == "r1"]
    assert told == [(0, 0, None), (1, 0, None), (0, 1, None), (1, 1, None), (0, 2, "length"), (1, 2, "length")]
    assert [event.job.request for event in bench.heard(OpenHandoff)] == ["r2"]
    assert [event.handoff for event in bench.heard(CommitHandoff)] == [2 + 1]
    policy.receive(whole(job(3)), 1.0)
    bench.step(policy)
    policy.leave("draining")
    assert [event.key.request for event in bench.heard(Fail)] == ["r3", "r2"], "another worker can go on"


def test_what_the_model_has_no_tokens_for_fails_alone() -> None:
    bench, policy = prefill_worker()
    policy.receive(job(1, token_ids=[1, 10**6]), 1.0)
    policy.receive(job(2, prompt_tokens=0), 1.0)
    policy.receive(job(3), 1.0)
    failed = [(event.key.request, event.failure.reason) for event in bench.heard(Fail)]
    assert failed == [("r1", "malformed"), ("r2", "malformed")]
    assert bench.step(policy) is not None


def test_leaving_hands_everything_back() -> None:
    bench, policy = prefill_worker()
    policy.receive(job(1), 1.0)
    policy.receive(job(2), 1.0)
    bench.step(policy)
    policy.leave("draining")
    assert {(event.key.request, event.failure.reason, event.failure.retryable) for event in bench.heard(Fail)} == {
        ("r1", "draining", True),
        ("r2", "draining", True),
    }
