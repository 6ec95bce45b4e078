"""Tests a decode worker's way with a sequence, event by event."""

from msgspec import structs

from contracts.ids import AttemptKey
from contracts.messages.gateway import Stages, Way
from contracts.messages.handoff import Branch
from contracts.messages.sampling import Limits
from kvtransfer.events import BlocksGranted, BlocksRefused, BlocksWanted, Dropped, HandoffOver, Landed
from kvtransfer.handoff import HandoffKey
from tests.worker.roles.decode_handoffs import KEY, committed, decode_worker, landed, opened, short_job, wanted
from worker.events import Begin, Emit, Fail, Kill


def test_a_sequence_gets_room_lands_runs_and_ends() -> None:
    bench, policy = decode_worker()
    policy.receive(wanted(0), 1.0)
    assert bench.step(policy) is None, "nothing to compute while it lands"
    (granted,) = bench.heard(BlocksGranted)
    assert granted.key == KEY and len(granted.blocks[0]) == 3 and granted.held == (0,)
    policy.receive(landed(Limits(4)), 2.0)
    (begin,) = bench.heard(Begin)
    assert begin.gateway == "gateway" and begin.emitted.token_ids == [3] and begin.emitted.index == 0
    assert begin.emitted.stages.handoff_bytes == 384 and begin.emitted.stages.handoff_ms == 1000.0
    for index in (1, 2, 3):
        plan = bench.step(policy)
        assert plan is not None and plan.works[0].start == 9 + index, "the first token's KV is computed here"
        (emit,) = bench.heard(Emit)
        assert emit.emitted[0].index == index
    assert emit.emitted[0].finish == "length"
    assert bench.heard(HandoffOver) == [HandoffOver(KEY)]
    assert bench.blocks.used_count == 0 and not policy.busy()
    assert policy.load().prompt_tokens == 0 and policy.load().handoff_bytes == 384


def test_both_sides_of_a_handoff_tell_its_times() -> None:
    bench, policy = decode_worker()
    policy.receive(wanted(0), 1.0)
    bench.step(policy)
    way = Way("tcp", True, "fp8")
    stages = Stages(1.0, 2.0, grant_ms=3.0, send_ms=4.0, exposed_ms=5.0, way=way)
    policy.receive(structs.replace(landed(stages=stages), land_ms=0.25), 1.5)
    (begin,) = bench.heard(Begin)
    assert begin.emitted.stages == Stages(1.0, 2.0, 500.0, 384, 0, 3.0, 4.0, 0.25, 5.25, way)


def test_a_handoff_that_can_never_fit_is_refused() -> None:
    bench, policy = decode_worker(blocks=3)
    policy.receive(wanted(0, tokens=50), 1.0)
    (refused,) = bench.heard(BlocksRefused)
    assert refused.reason == "capacity" and not refused.retryable
    assert not policy.busy()


def test_what_makes_no_sense_is_refused() -> None:
    bench, policy = decode_worker()
    for bad in (opened(prompt_tokens=0), opened(token_ids=[10**6] * 10)):
        policy.receive(BlocksWanted(KEY, bad, (0,)), 1.0)
        assert bench.heard(BlocksRefused)[0].reason == "malformed"
    policy.receive(wanted(0), 1.0)
    bench.step(policy)
    foreign = structs.replace(committed(), branches=[Branch(0, [10**6])])
    policy.receive(Landed(key=KEY, open=opened(), commit=foreign, bytes=384, digest=1), 1.0)
    assert bench.heard(Fail)[0].failure.reason == "malformed"
    assert bench.blocks.used_count == 0 and not policy.busy()


def test_what_is_dropped_while_landing_is_freed_and_a_kill_waits_for_that() -> None:
    bench, policy = decode_worker()
    policy.receive(wanted(0), 1.0)
    bench.step(policy)
    policy.receive(Kill(AttemptKey("r1", 0, 1), "cancelled"), 1.0)
    policy.expired(bench.scheduler.expired(10.0), 10.0)
    assert bench.blocks.used_count == 3, "the transfer may still write into them"
    policy.receive(Dropped(KEY, "cancelled"), 1.0)
    assert bench.blocks.used_count == 0 and not policy.busy()
    bench.said.clear()
    policy.receive(landed(), 1.0)  # too late: it crossed
    assert not bench.said


def test_the_short_path_computes_its_prompt_here() -> None:
    bench, policy = decode_worker()
    policy.receive(short_job(limits=Limits(2)), 1.0)
    bench.step(policy, 1.5)
    assert not bench.heard(Emit)
    bench.step(policy, 2.0)
    (emit,) = bench.heard(Emit)
    assert emit.emitted[0].index == 0 and emit.emitted[0].stages.queue_ms == 1000.0
    bench.step(policy, 3.0)
    (emit,) = bench.heard(Emit)
    assert emit.emitted[0].finish == "length" and emit.emitted[0].stages is None
    assert policy.load().prompt_tokens == 20 and bench.blocks.used_count == 0


def test_deadlines_and_leaving_are_reported() -> None:
    bench, policy = decode_worker()
    policy.receive(wanted(0), 1.0)
    bench.step(policy)
    policy.receive(landed(), 1.0)
    policy.expired(bench.scheduler.expired(7.0), 7.0)
    assert bench.heard(Fail)[0].failure.reason == "deadline"
    other = HandoffKey("prefill", 6)
    policy.receive(wanted(0, handoff=6, request="r2"), 8.0)
    bench.step(policy, 8.0)
    bench.said.clear()
    policy.leave("draining")
    assert bench.heard(BlocksRefused) == [BlocksRefused(other, "draining", "the decode worker is leaving", True)], (
        "the prefill worker reports what has not landed"
    )
    assert bench.blocks.used_count == 0
