"""Checks that KV which is here already is neither sent nor computed again, in handoffs and on the short path."""

from contracts.messages.sampling import Limits
from infra.redis.worker_load import HeldBlocks
from kvtransfer.events import BlocksGranted, Dropped
from kvtransfer.handoff import HandoffKey
from tests.worker.roles.decode_handoffs import decode_worker, landed, short_job, wanted
from worker.events import Emit


def test_a_landing_prompt_is_granted_without_the_whole_blocks_that_are_here() -> None:
    bench, policy = decode_worker()
    policy.receive(wanted(0, salt="tenant", priority=3), 1.0)
    bench.step(policy)
    (first,) = bench.heard(BlocksGranted)
    policy.receive(landed(Limits(3)), 2.0)
    assert [(each.prompt.salt, each.prompt.priority) for each in bench.scheduler.added] == [("tenant", 3)]
    for running in (True, False):
        if not running:
            bench.run(policy)
        policy.receive(wanted(0, 1, handoff=6, request="r2", tokens=14, salt="tenant"), 3.0)
        policy.receive(wanted(0, handoff=7, request="r3", tokens=14, salt="somebody else's"), 3.0)
        bench.launch(policy, 3.0)
        if running:
            bench.collect(policy, 3.0)
        second, other = bench.heard(BlocksGranted)
        assert (first.held, second.held, other.held) == ((0,), (2,), (0,)), "two blocks are full, the third differs"
        assert second.blocks[0][:2] == first.blocks[0][:2] and len(second.blocks[0]) == 4
        assert not set(second.blocks[0]) & set(other.blocks[0])
        assert policy.load().held == HeldBlocks(reserved=2 + 4), "nothing lands in blocks that are here"
        for handoff in (6, 7):
            policy.receive(Dropped(HandoffKey("prefill", handoff), "cancelled"), 3.0)
    assert bench.blocks.used_count == 0 and not policy.busy()


def test_a_prompt_that_is_all_here_needs_no_bytes() -> None:
    bench, policy = decode_worker()
    policy.receive(short_job(13, request="r2", limits=Limits(2)), 1.0)
    bench.run(policy)
    policy.receive(wanted(0, tokens=12), 2.0)
    bench.step(policy)
    (grant,) = bench.heard(BlocksGranted)
    assert grant.held == (3,) and len(grant.blocks[0]) == 3
    policy.receive(landed(Limits(2)), 3.0)
    bench.run(policy)
    assert [each.key.request for event in bench.heard(Emit) for each in event.emitted] == ["r2", "r2", "r1"]
    assert bench.blocks.used_count == 0 and not policy.busy()


def test_the_short_path_computes_a_common_prompt_once() -> None:
    bench, policy = decode_worker()
    policy.receive(short_job(14, limits=Limits(2)), 1.0)
    bench.run(policy, 2.0)
    policy.receive(short_job(16, request="r2", limits=Limits(2)), 2.5)
    policy.receive(short_job(16, request="r3", limits=Limits(2), salt="somebody else's"), 2.5)
    bench.run(policy, 3.0)
    cached = {
        each.key.request: each.stages.cached_tokens
        for event in bench.heard(Emit)
        for each in event.emitted
        if each.stages is not None
    }
    assert cached == {"r1": 0, "r2": 12, "r3": 0}
    assert policy.load().prompt_tokens == 14 + 4 + 16 and policy.load().kv.found_tokens == 12
    assert policy.load().blocks_cached > 0
    assert bench.blocks.used_count == 0 and not policy.busy()
