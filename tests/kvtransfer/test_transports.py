"""Tests which transport a pair chooses, and what holds over every one: pinned blocks, windows, turns, strangers."""

import random
from typing import Any, cast

import numpy as np
import pytest
import zmq.asyncio
from msgspec.structs import replace

from contracts.messages.wire import encode
from infra.config.transfer import TransferConfig
from infra.network.sockets import dealer, payload_dealer
from kvtransfer.events import (
    AbortHandoff,
    Closed,
    ToPrefillEngine,
    Unpinned,
)
from kvtransfer.handoff import HandoffKey
from kvtransfer.memory import KVDevices
from tests.kvtransfer.pair import (
    BLOCKS_OF_TWO_PAYLOADS,
    DECODE,
    LAYER_COUNT,
    PREFILL,
    QUICK,
    WAYS,
    Way,
    pair,
    quick,
    until,
)
from tests.kvtransfer.world import layer
from tests.network import KEYS

COPYING_TRANSPORTS = ("pool", "shm", "nixl")
"""Transports whose payloads are copied when they leave."""


@pytest.mark.parametrize("prefill", ["sealed", "none"])
@pytest.mark.parametrize("decode", ["sealed", "none"])
async def test_one_side_that_wants_a_seal_is_enough(
    prefill: str, decode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair({"kv_transport": "tcp", "kv_security": decode}, QUICK) as both:
        mine = replace(both.config, kv_security=prefill)
        sender = both.sender(mine, "prefill-2")
        sender.handle(both.opened(5, [1]))
        await until(lambda: sender._links[DECODE].channel is not None, "it does not join")
        channel = sender._links[DECODE].channel
        assert channel is not None and channel.sealed == ("sealed" in (prefill, decode))
        await sender.close()
    assert ("not sealed over tcp" in caplog.text) == (prefill == decode == "none")


@pytest.mark.parametrize(("decode", "chosen"), [("auto", "pool"), ("ipc", "ipc"), ("tcp", "tcp")])
async def test_the_best_that_both_have_is_chosen(decode: str, chosen: str) -> None:
    async with pair({"kv_transport": decode}, QUICK) as both:
        anything = replace(both.config, kv_transport="auto")
        sender = both.sender(anything, "prefill-2")
        sender.handle(both.opened(5, [1]))
        await until(lambda: sender._links[DECODE].channel is not None, "it does not join")
        channel = sender._links[DECODE].channel
        assert channel is not None and channel.transport == chosen
        await sender.close()


async def test_a_worker_on_a_gpu_writes_what_it_has_read_into_the_pool_of_a_cpu() -> None:
    async with pair(WAYS["pool"], QUICK) as both:
        both.source.devices = cast(KVDevices, object())
        both.run(1, [1, 2, 5])
        await both.unpinned(1)
        assert both.equal(1) and both.target.writes == 3 * LAYER_COUNT
        assert [link.channel.transport for link in both.outbound._links.values() if link.channel] == ["pool"]


async def test_a_pair_without_a_common_transport_fails_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(WAYS["ipc"], QUICK) as both:
        sender = both.sender(type(QUICK)(kv_transport="tcp"), "prefill-2")
        sender.handle(both.opened(5, [1]))
        await until(lambda: both.of(Unpinned), "it waits")
        assert (both.of(Closed)[0].reason, both.of(Closed)[0].retryable) == ("no_transport", True)
        await sender.close()
    assert f"decode worker {DECODE} has no transport for KV that works; not over tcp: not offered" in caplog.text


async def test_memory_that_is_overwritten_while_its_frame_is_queued_is_never_seen(way: Way) -> None:
    """It is as if its block was given away too early. What was copied when it left arrives as it was."""
    async with pair(way, quick(way)) as both:
        await both.joined()
        target = both.target
        both.open(1, BLOCKS_OF_TWO_PAYLOADS)
        await until(lambda: not both.asking(), "the Grant does not arrive")
        expected = {place: both.source.arrays[place][BLOCKS_OF_TWO_PAYLOADS].copy() for place in both.source.arrays}
        both.compute(1)
        link = both.outbound._links[DECODE]
        while link.side.handoffs[1].sent.count < 6:  # the pump's turn, but nobody reads yet
            assert link._send_payload()
        for place in both.source.arrays:
            both.source.arrays[place][BLOCKS_OF_TWO_PAYLOADS] = 0
        both.commit(1)
        await both.unpinned(1)
        if both.of(Closed)[1].outcome == "accepted":
            blocks = both.reserved[HandoffKey(PREFILL, 1)]
            assert all(np.array_equal(target.arrays[place][blocks], expected[place]) for place in expected)
        else:
            assert both.of(Closed)[1].reason == "bad_digest"
        copied = link.channel is not None and (link.channel.sealed or link.channel.transport in COPYING_TRANSPORTS)
        assert not copied or both.of(Closed)[1].outcome == "accepted"


async def test_blocks_stay_pinned_while_their_frames_are_read(way: Way) -> None:
    """Nobody else may write into them: `Unpinned` comes after the last frame was read, or copied.

    The socket's own record tells, or a Credit, whichever is first; frames that a Credit covers leave the list later, at
    the next look.
    """
    async with pair(way, quick(way)) as both:
        link = await both.joined()
        both.open(1, BLOCKS_OF_TWO_PAYLOADS)
        await until(lambda: not both.asking(), "the Grant does not arrive")
        both.compute(1)
        while link.side.handoffs[1].sent.count < 6:
            assert link._send_payload()
        flying = dict(link.side.handoffs[1].sent.flying)
        copied = link.channel is not None and (link.channel.sealed or link.channel.transport in COPYING_TRANSPORTS)
        assert (not flying) == copied
        trackers, sent = [tracker for _, _, tracker in link._frames], link.side.window.sent
        read: list[bool] = []  # whether all were, when `Unpinned` came
        report = both.outbound.report

        def reported(event: ToPrefillEngine) -> None:
            if isinstance(event, Unpinned):
                read.append(link.side.window.seen >= sent or all(tracker.done for tracker in trackers))
            report(event)

        both.outbound.report = reported  # type: ignore[method-assign]
        both.outbound.handle(AbortHandoff(1, "cancelled"))
        await both.unpinned(1)
        assert read == [True] and not link.side.handoffs
        await until(lambda: not link._frames, "frames stay listed")


async def test_64_handoffs_of_very_different_sizes(way: Way) -> None:
    async with pair(way, TransferConfig(frame=64 << 10, window=256 << 10)) as both:
        choice = random.Random(1)
        free = list(range(1, 256))
        sizes = [choice.choice([1, 1, 1, 2, 2, 3, 5]) for _ in range(63)] + [40]
        for number, size in enumerate(sizes):
            blocks, free = free[:size], free[size:]
            both.run(number, blocks)
        await both.unpinned(*range(64))
        assert all(event.outcome == "accepted" for event in both.of(Closed))
        assert all(both.equal(number) for number in range(64))
        assert max(both.order(63)) >= 60, "the largest does not wait for the smallest, nor they for it"


async def test_a_slow_receiver_has_no_more_under_way_than_the_window(way: Way) -> None:
    window = 256 << 10
    async with pair(way, TransferConfig(frame=32 << 10, window=window)) as both:
        link = await both.joined()
        most = 0
        name = "landed" if link.side.transport == "pool" else "write"
        land = getattr(both.target, name)

        def slow(*payload: Any) -> Any:
            nonlocal most
            most = max(most, link.side.window.sent - both.target.writes * (32 << 10))
            return land(*payload)

        setattr(both.target, name, slow)
        both.run(1, list(range(1, 129)))
        await both.unpinned(1)
        assert both.equal(1) and 0 < most <= window + (32 << 10)


async def test_strangers_reach_no_payload_socket() -> None:
    async with pair({"kv_transport": "tcp"}, QUICK) as both:
        context = zmq.asyncio.Context()
        await both.joined()
        port = both.inbound._payload_sockets.port
        stranger = payload_dealer(context, f"tcp://127.0.0.1:{port}", b"stranger", "stranger", "guessed")
        await until(lambda: both.network.gatekeeper.refused["user"], "it was let in")
        insider = dealer(context, both.inbound.handoff_address, KEYS)  # knows the secret, but did not join
        insider.send_multipart([encode(layer(0, 0, 0, 1))])
        await until(lambda: both.inbound.side.strays == 1, "its payload was taken")
        stranger.close(0)
        insider.close(0)
        context.destroy(0)


async def test_a_link_that_was_forgotten_joins_again(way: Way) -> None:
    quick = TransferConfig(frame=128 << 10, window=1 << 20, remember=0.2, repeat_ms=50)
    async with pair(way, quick) as both:
        link = await both.joined()
        first = link.channel
        for known in list(both.inbound._sessions._by_link):
            both.inbound._sessions.forget(known)
        rejoined = lambda: link.channel is not first or not both.outbound._links  # noqa: E731 - a pool's link ends
        await until(rejoined, "it does not join again")
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
        await both.unpinned(1)
        assert both.of(Closed)[1].outcome == "accepted" and both.equal(1)


async def test_nothing_waits_while_two_sides_are_quiet(way: Way) -> None:
    """No task of theirs turns in a circle: a link whose handoffs are over sleeps until its next Join."""
    async with pair(way) as both:
        link = await both.joined()
        await until(lambda: not link.side.handoffs and (link._pause() or 0) > 100, "it never sleeps for long")
