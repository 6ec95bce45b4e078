"""Tests what goes wrong on the way, over every transport: no handoff is taken that is not whole, and none stays."""

import random
from collections.abc import Callable
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
    Dropped,
    Landed,
    LayerReady,
    RoomWanted,
    ToPrefillEngine,
    Unpinned,
)
from kvtransfer.handoff import HandoffKey
from kvtransfer.memory import KVDevices
from kvtransfer.prefill_link_driver import PrefillLinkDriver
from kvtransfer.protocol.decode_handoff import DecodeHandoffState
from kvtransfer.protocol.prefill_handoff import PrefillHandoffState
from tests.kvtransfer.meddler import Fate, Frames, Meddler, header_of
from tests.kvtransfer.pair import DECODE, LAYERS, PREFILL, WAYS, Pair, Way, pair, until
from tests.kvtransfer.world import layer
from tests.network import KEYS

QUICK = TransferConfig(
    frame=128 << 10, window=1 << 20, repeat_ms=50, verify_deadline=0.3, silence=1.0, grant_deadline=1.0
)
UNHURRIED = replace(QUICK, silence=4.0, grant_deadline=4.0, verify_deadline=1.0)
"""For connections that take longer to begin."""
COPYING = ("pool", "shm", "nixl")  # transports whose payloads are copied when they leave
BLOCKS = [9, 3, 4, 5, 20, 21, 1, 30]  # two payloads for each layer


def quick(way: Way) -> TransferConfig:
    return UNHURRIED if way["kv_transport"] == "nixl" else QUICK


async def joined(both: Pair) -> PrefillLinkDriver:
    """Returns the link, after a first handoff has passed: its channel is open."""
    both.run(0, [200, 201])
    await both.unpinned(0)
    link = both.outbound._links[DECODE]
    assert link.channel is not None
    return link


def drop(frames: Frames) -> list[Frames]:
    return []


def twice(frames: Frames) -> list[Frames]:
    return [frames, frames]


def cut(frames: Frames) -> list[Frames]:
    return [[*frames[:-1], frames[-1][: len(frames[-1]) // 2]]]


def without_payload(frames: Frames) -> list[Frames]:
    return [frames[:-1]]


def swapped() -> dict[int, Fate]:
    """Lets payload 2 arrive behind payload 3."""
    held: list[Frames] = []

    def hold(frames: Frames) -> list[Frames]:
        held.append(frames)
        return []

    return {2: hold, 3: lambda frames: [frames, *held]}


def altered(number: int) -> Fate:
    """Changes one bit of the payload, or of the header where the payload does not pass here."""

    def alter(frames: Frames) -> list[Frames]:
        spoiled = bytearray(frames[-1])
        spoiled[number % len(spoiled)] ^= 1
        return [[*frames[:-1], bytes(spoiled)]]

    return alter


def another_header(frames: Frames) -> list[Frames]:
    """Claims that a payload is for other blocks of the same size: those of the next layer."""
    header = header_of(frames)
    assert header is not None
    at = frames.index(encode(header))
    moved = layer(header.number, (header.layer + 1) % LAYERS, header.first, header.count, offset=header.offset)
    claimed = {name: getattr(header, name) for name in ("sender", "receiver", "handoff", "size")}
    frames[at] = encode(type(header)(**({name: getattr(moved, name) for name in moved.__struct_fields__} | claimed)))
    return [frames]


HARM: dict[str, Callable[[], dict[int, Fate]]] = {
    "the first is lost": lambda: {0: drop},
    "one is lost": lambda: {3: drop},
    "the last is lost": lambda: {5: drop},
    "all are lost": lambda: dict.fromkeys(range(6), drop),
    "two change places": swapped,
    "one is altered": lambda: {2: altered(7)},
    "the last is altered": lambda: {5: altered(70_000)},
    "one is cut": lambda: {2: cut},
    "one has no payload": lambda: {4: without_payload},
    "one claims another place": lambda: {2: another_header},
}


@pytest.mark.parametrize("harm", HARM)
async def test_what_is_harmed_is_never_taken(way: Way, harm: str) -> None:
    async with pair(way, quick(way)) as both:
        link = await joined(both)
        meddler = Meddler(link, HARM[harm]())
        both.run(1, BLOCKS)
        await both.unpinned(1)
        closed = both.of(Closed)[1]
        assert len(meddler.passed) == 6
        assert (closed.outcome, closed.retryable) == ("failed", True) and len(both.of(Landed)) == 1
        assert [event.key.handoff for event in both.of(Dropped)] == [1]
        assert set(both.reserved) == {HandoffKey(PREFILL, 0)} and not both.unclosed()
        both.run(2, BLOCKS)  # as the next attempt would
        await both.unpinned(2)
        assert both.of(Closed)[2].outcome == "accepted" and both.equal(2)


async def test_a_payload_in_the_ring_that_was_altered_is_never_taken() -> None:
    async with pair(WAYS["shm"], QUICK) as both:
        meddler = Meddler(await joined(both), {})
        ring = meddler.ring
        assert ring is not None

        def spoil(frames: Frames) -> list[Frames]:
            header = header_of(frames)
            assert header is not None
            ring.views(header.offset, header.size)[0][5] ^= 1
            return [frames]

        meddler._fates[4] = spoil
        both.run(1, BLOCKS)
        await both.unpinned(1)
        assert both.of(Closed)[1].reason == "bad_digest" and len(both.of(Landed)) == 1


async def test_repeated_payloads_are_dropped(way: Way) -> None:
    async with pair(way, quick(way)) as both:
        link = await joined(both)
        before = both.inbound.side.strays  # repeated messages of the first handoff
        Meddler(link, {1: twice, 5: twice})
        both.run(1, BLOCKS)
        await both.unpinned(1)
        assert both.of(Closed)[1].outcome == "accepted" and both.equal(1)
        counted = lambda: both.inbound.side.strays + both.inbound.refused["unsealed"] == before + 2  # noqa: E731
        await until(counted, "nobody counted them")


async def test_payloads_of_an_earlier_handoff_are_dropped(way: Way) -> None:
    """They are replayed with their own headers, among those of another handoff."""
    async with pair(way, quick(way)) as both:
        meddler = Meddler(await joined(both), {})
        both.run(1, BLOCKS)
        await both.unpinned(1)
        old = meddler.passed[:6]
        meddler._fates |= {number: lambda frames: [*old, frames] for number in (6, 8)}
        both.run(2, [40, 41, 42, 43, 44, 45, 46, 47])
        await both.unpinned(2)
        assert both.of(Closed)[2].outcome == "accepted" and both.equal(2) and both.equal(1)
        assert both.inbound.side.strays + both.inbound.refused["unsealed"] >= 12


async def test_a_sealed_frame_of_another_session_is_refused() -> None:
    """That holds even for a process that has the deployment's secret: each link has a key of its own."""
    async with pair(WAYS["tcp, sealed"], QUICK) as both:
        meddler = Meddler(await joined(both), {})
        other = both.sender(both.config, "prefill-2")
        other.handle(both.opened(7, [100]))
        await until(lambda: other._links[DECODE].channel is not None, "it does not join")
        foreign: list[Frames] = []
        theirs = Meddler(other._links[DECODE], {0: lambda frames: foreign.append(frames) or []})  # type: ignore[func-returns-value]
        for place in range(LAYERS):
            other.handle(LayerReady(7, 0, place, 1))
        await until(lambda: theirs.passed, "nothing leaves")
        meddler._fates[0] = lambda frames: [*foreign, frames]
        both.run(1, BLOCKS)
        await both.unpinned(1)
        (closed,) = [event for event in both.of(Closed) if event.handoff == 1]
        assert closed.outcome == "accepted" and both.inbound.refused["unsealed"] == 1
        await other.close()


async def test_a_payload_that_names_another_sender_is_refused(way: Way) -> None:
    """A link speaks for its own sender only."""

    def another_sender(frames: Frames) -> list[Frames]:
        header = header_of(frames)
        assert header is not None
        frames[frames.index(encode(header))] = encode(replace(header, sender="prefill-9"))
        return [frames]

    async with pair(way, quick(way)) as both:
        Meddler(await joined(both), {2: another_sender})
        both.run(1, BLOCKS)
        await both.unpinned(1)
        assert both.of(Closed)[1].outcome == "failed"
        assert both.inbound.refused["malformed"] + both.inbound.refused["unsealed"] == 1


async def test_frames_without_a_seal_are_refused_where_one_is_asked_for() -> None:
    async with pair(WAYS["tcp, sealed"], QUICK) as both:
        link = await joined(both)
        assert link.channel is not None and link.channel.sealed
        Meddler(link, {0: lambda frames: [frames[1:]], 1: lambda frames: [frames[1:2]]})
        both.run(1, BLOCKS)
        await both.unpinned(1)
        assert both.of(Closed)[1].outcome == "failed" and both.inbound.refused["malformed"] == 2


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
        assert both.equal(1) and both.target.writes == 3 * LAYERS
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
        await joined(both)
        target = both.target
        both.open(1, BLOCKS)
        await until(lambda: not both.asking(), "the Grant does not arrive")
        expected = {place: both.source.arrays[place][BLOCKS].copy() for place in both.source.arrays}
        both.compute(1)
        link = both.outbound._links[DECODE]
        while link.side.handoffs[1].sent < 6:  # the pump's turn, but nobody reads yet
            assert link._send_payload()
        for place in both.source.arrays:
            both.source.arrays[place][BLOCKS] = 0
        both.commit(1)
        await both.unpinned(1)
        if both.of(Closed)[1].outcome == "accepted":
            blocks = both.reserved[HandoffKey(PREFILL, 1)]
            assert all(np.array_equal(target.arrays[place][blocks], expected[place]) for place in expected)
        else:
            assert both.of(Closed)[1].reason == "bad_digest"
        copied = link.channel is not None and (link.channel.sealed or link.channel.transport in COPYING)
        assert not copied or both.of(Closed)[1].outcome == "accepted"


async def test_blocks_stay_pinned_while_their_frames_are_read(way: Way) -> None:
    """Nobody else may write into them: `Unpinned` comes after the last frame was read, or copied.

    The socket's own record tells, or a Credit, whichever is first; frames that a Credit covers leave the list later, at
    the next look.
    """
    async with pair(way, quick(way)) as both:
        link = await joined(both)
        both.open(1, BLOCKS)
        await until(lambda: not both.asking(), "the Grant does not arrive")
        both.compute(1)
        while link.side.handoffs[1].sent < 6:
            assert link._send_payload()
        flying = dict(link.side.handoffs[1].flying)
        copied = link.channel is not None and (link.channel.sealed or link.channel.transport in COPYING)
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
        link = await joined(both)
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


SENDER_DIES = ["OPENING", "STREAMING", "COMMITTED", "ABORTING"]


@pytest.mark.parametrize("state", SENDER_DIES)
async def test_a_sender_that_is_killed_in_any_state_frees_the_receiver(way: Way, state: str) -> None:
    async with pair(way, quick(way)) as both:
        link = await joined(both)
        both.granting = state != "OPENING"
        if state == "COMMITTED":
            Meddler(link, {5: drop})  # its Commit cannot be accepted
        both.open(1, BLOCKS)
        await until(lambda: both.of(RoomWanted)[1:], "the Open does not arrive")
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


RECEIVER_DIES = ["WAITING", "GRANTED", "VERIFYING", "OWNED"]


@pytest.mark.parametrize("state", RECEIVER_DIES)
async def test_a_receiver_that_is_killed_in_any_state_frees_the_sender(way: Way, state: str) -> None:
    async with pair(way, quick(way)) as both:
        link = await joined(both)
        both.granting = state != "WAITING"
        if state == "VERIFYING":
            Meddler(link, {5: drop})
        both.open(1, BLOCKS)
        await until(lambda: both.of(RoomWanted)[1:], "the Open does not arrive")
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


async def test_strangers_reach_no_payload_socket() -> None:
    async with pair({"kv_transport": "tcp"}, QUICK) as both:
        context = zmq.asyncio.Context()
        await joined(both)
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
        link = await joined(both)
        first = link.channel
        for known in list(both.inbound._sessions._by_link):
            both.inbound._sessions.forget(known)
        rejoined = lambda: link.channel is not first or not both.outbound._links  # noqa: E731 - a pool's link ends
        await until(rejoined, "it does not join again")
        both.run(1, BLOCKS)
        await both.unpinned(1)
        assert both.of(Closed)[1].outcome == "accepted" and both.equal(1)


async def test_nothing_waits_while_two_sides_are_quiet(way: Way) -> None:
    """No task of theirs turns in a circle: a link whose handoffs are over sleeps until its next Join."""
    async with pair(way) as both:
        link = await joined(both)
        await until(lambda: not link.side.handoffs and (link._pause() or 0) > 100, "it never sleeps for long")
