"""Tests that the death of either side ends each of its handoffs on the other, over every transport."""

import pytest

from kvtransfer.events import (
    AbortHandoff,
    BlocksWanted,
    Closed,
    Dropped,
    Landed,
    LayerReady,
)
from kvtransfer.handoff import HandoffKey
from kvtransfer.protocol.decode_handoff import DecodeHandoffState
from kvtransfer.protocol.prefill_handoff import PrefillHandoffState
from tests.kvtransfer.meddler import Meddler, drop
from tests.kvtransfer.pair import BLOCKS_OF_TWO_PAYLOADS, PREFILL, Way, pair, quick, until

SENDER_STATES = ["OPENING", "STREAMING", "COMMITTED", "ABORTING"]


@pytest.mark.parametrize("state", SENDER_STATES)
async def test_a_sender_that_is_killed_in_any_state_frees_the_receiver(way: Way, state: str) -> None:
    async with pair(way, quick(way)) as both:
        link = await both.joined()
        both.granting = state != "OPENING"
        if state == "COMMITTED":
            Meddler(link, {5: drop})  # its Commit cannot be accepted
        both.open(1, BLOCKS_OF_TWO_PAYLOADS)
        await until(lambda: both.of(BlocksWanted)[1:], "the Open does not arrive")
        sender = link.side.handoffs[1]
        if state != "OPENING":
            await until(lambda: sender.state is PrefillHandoffState.STREAMING, "the Grant does not arrive")
            both.outbound.handle(LayerReady(1, 0, 0, 3))
        if state == "COMMITTED":
            both.compute(1)
            both.commit(1)
        if state == "ABORTING":
            both.outbound.handle(AbortHandoff(1, "cancelled"))
        await until(lambda: sender.state is PrefillHandoffState[state], f"it is not {state}")
        await both.kill_sender()
        await until(lambda: both.of(Dropped), "the receiver holds on")
        assert both.inbound.side.handoffs.keys() <= {HandoffKey(PREFILL, 0)}
        assert set(both.reserved) == {HandoffKey(PREFILL, 0)} and len(both.of(Landed)) == 1


RECEIVER_STATES = ["WAITING", "GRANTED", "VERIFYING", "OWNED"]


@pytest.mark.parametrize("state", RECEIVER_STATES)
async def test_a_receiver_that_is_killed_in_any_state_frees_the_sender(way: Way, state: str) -> None:
    async with pair(way, quick(way)) as both:
        link = await both.joined()
        both.granting = state != "WAITING"
        if state == "VERIFYING":
            Meddler(link, {5: drop})
        both.open(1, BLOCKS_OF_TWO_PAYLOADS)
        await until(lambda: both.of(BlocksWanted)[1:], "the Open does not arrive")
        receiver = both.inbound.side.handoffs[HandoffKey(PREFILL, 1)]
        if state != "WAITING":
            await until(lambda: receiver.state is DecodeHandoffState.GRANTED, "it is not granted")
            sender = link.side.handoffs[1]
            await until(lambda: sender.state is PrefillHandoffState.STREAMING, "the Grant does not arrive")
            both.compute(1)
        if state in ("VERIFYING", "OWNED"):
            both.commit(1)
            await until(lambda: receiver.state is DecodeHandoffState[state], f"it is not {state}")
        await both.inbound.close()
        await both.unpinned(1)
        assert not both.unclosed()
        closed = both.of(Closed)[1]
        reason = {"WAITING": "grant_deadline", "GRANTED": "payloads_unanswered"}.get(state, "peer_silent")
        if way["kv_transport"] == "pool":
            reason = "connection_lost"  # at once: its socket has ended
        assert (closed.outcome, closed.reason) == ("failed", reason) or state == "OWNED"
