"""Tests what each side tells of its handoffs and links, over every transport."""

from infra.redis.records import KVLink
from infra.redis.worker_load import HandoffCounts
from kvtransfer.events import AbortHandoff, BlocksWanted, Closed, HandoffTimes, Landed
from kvtransfer.protocol.outcomes import OTHER_REASON, Outcomes
from tests.kvtransfer.pair import DECODE, PREFILL, Way, pair, until
from tests.kvtransfer.world import TOKENS


async def test_both_sides_name_the_way_and_their_part_of_the_time(way: Way) -> None:
    async with pair(way) as both:
        assert both.outbound.links() == both.inbound.links() == []
        both.run(1, [9, 3, 4, 5])
        await both.unpinned(1)
        sealed = way == {"kv_transport": "tcp"}
        (closed,), (landed,) = both.of(Closed), both.of(Landed)
        rate = closed.bytes / (closed.times.send_ms / 1000)  # which only the sender knows
        links = [
            KVLink(peer, way["kv_transport"], sealed, "none", speed) for peer, speed in ((DECODE, rate), (PREFILL, 0.0))
        ]
        assert [*both.outbound.links(), *both.inbound.links()] == links
        told = landed.commit.stages
        assert (told.way.transport, told.way.sealed) == (way["kv_transport"], sealed)
        assert 0 < told.exposed_ms < closed.times.exposed_ms <= closed.ms, "Accepted is later than Commit"
        assert 0 < told.send_ms <= closed.times.send_ms <= closed.ms
        assert told.grant_ms == closed.times.grant_ms and 0 < closed.times.grant_ms < closed.ms
        assert told.prefill_ms == TOKENS.stages.prefill_ms, "what was told before is told still"

        sent, here = both.outbound.counts(), both.inbound.counts()
        seconds = [sent.grant_seconds, sent.send_seconds, sent.exposed_seconds, here.land_seconds]
        times = closed.times
        assert seconds == [ms / 1000 for ms in (times.grant_ms, times.send_ms, times.exposed_ms, landed.land_ms)]
        assert sent.given_up == here.given_up == {}
        assert sent.dropped == {"malformed": 0, "stray": 0} and here.dropped == {"stray": 0}


async def test_a_handoff_that_does_not_pass_is_counted_by_its_reason_on_both_sides(way: Way) -> None:
    async with pair(way) as both:
        both.granting = False
        both.open(1, [1, 2])
        await until(lambda: both.of(BlocksWanted), "nobody asks for room")
        both.outbound.handle(AbortHandoff(1, "cancelled"))
        await both.unpinned(1)
        both.inbound.drain()
        both.open(2, [3])
        await both.unpinned(2)
        sent, here = both.outbound.counts(), both.inbound.counts()
        assert sent.given_up == here.given_up == {"draining": 1, "cancelled": 1}
        assert sent.exposed_seconds == sent.grant_seconds == here.land_seconds == 0


def test_a_word_that_only_a_peer_knows_is_no_reason_of_ours() -> None:
    outcomes = Outcomes()
    for reason in ("gap", "no such word", "another", "gap"):
        outcomes.given_up(reason)
    outcomes.accepted(HandoffTimes(1000.0, 500.0, 250.0))
    outcomes.accepted(HandoffTimes(1000.0, 500.0, 250.0))
    assert outcomes.counts({"stray": 3}) == HandoffCounts(2.0, 1.0, 0.5, 0.0, {"gap": 2, OTHER_REASON: 2}, {"stray": 3})
