"""Tests both drivers over every transport: bytes move, and every way to end leaves nothing held."""

import asyncio
import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from msgspec.structs import replace

from contracts.errors import ConfigError, IllegalMove
from contracts.ids import AttemptKey
from contracts.messages.wire import encode
from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from infra.network.bind_address import LOOPBACK_ADDRESS
from infra.network.gatekeeper import Gatekeeper
from infra.network.sockets import dealer, payload_ipc_router, router, send_now, send_now_tracked
from kvtransfer.events import (
    AbortHandoff,
    BlocksGranted,
    BlocksRefused,
    BlocksWanted,
    CancelAttempt,
    Closed,
    Dropped,
    HandoffOver,
    Landed,
    LayerReady,
    ToPrefillEngine,
    Unpinned,
)
from kvtransfer.handoff import HandoffKey
from kvtransfer.prefill_transfer import PrefillTransfer
from tests.kvtransfer.array_pool import ArrayPool
from tests.kvtransfer.pair import CONFIG, LAYER_COUNT, PREFILL, SPEC, WAYS, Pair, Way, pair, until
from tests.kvtransfer.world import TOKENS, commit, layer, opened, opening
from tests.network import KEYS, SECRET

UNREPEATED = replace(CONFIG, repeat_ms=60_000, silence=60.0)
"""Who waits for a repetition, or for a look at the clock, is beyond the test's limit."""


async def test_bytes_move_and_digests_agree(way: Way) -> None:
    async with pair(way) as both:
        blocks = [9, 3, 4, 5, 20, 21, 1]
        both.run(1, blocks)
        await both.unpinned(1)
        (closed,), (landed,) = both.of(Closed), both.of(Landed)
        assert closed.outcome == "accepted" and both.equal(1)
        assert closed.digests == landed.digests and len(closed.digests) == LAYER_COUNT * -(-len(blocks) // 4)
        assert closed.digest == landed.digest
        moved = LAYER_COUNT * len(blocks) * (32 << 10)
        assert closed.bytes == landed.bytes == moved
        assert both.target.writes == LAYER_COUNT * len(blocks)
        assert landed.commit.branches == TOKENS.branches
        assert not both.unclosed() and both.outbound.counts().dropped["stray"] == 0


@pytest.mark.parametrize("early", [True, False], ids=["computed before the Grant", "computed after it"])
@pytest.mark.parametrize("held", [1, 4, 6, 7])
async def test_only_what_is_not_held_moves(way: Way, held: int, early: bool) -> None:
    async with pair(way) as both:
        both.held = held
        blocks = [9, 3, 4, 5, 20, 21, 1]
        both.open(1, blocks)
        if not early:
            await until(lambda: not both.asking(), "the Grant does not arrive")
        both.compute(1)
        both.commit(1)
        await both.unpinned(1)
        (closed,), (landed,) = both.of(Closed), both.of(Landed)
        assert closed.outcome == "accepted" and both.equal(1)
        left = [(place, block) for place in range(LAYER_COUNT) for block in range(held, len(blocks))]
        firsts = {(0, place, block) for place in range(LAYER_COUNT) for block in range(held, len(blocks), 4)}
        assert set(closed.digests) == set(landed.digests) == firsts
        assert closed.digest == landed.digest == sum(landed.digests.values()) % 2**64
        moved = len(left) * (32 << 10)
        assert closed.bytes == landed.bytes == moved
        assert both.target.writes == len(left) and landed.commit.size == moved
        assert both.target.payloads == landed.commit.payloads == LAYER_COUNT * -(-(7 - held) // 4)
        assert both.outbound.counts().dropped["stray"] == both.inbound.side.strays == 0


async def test_a_prompt_that_is_held_whole_is_committed_with_its_first_tokens(way: Way) -> None:
    async with pair(way, UNREPEATED) as both:
        both.held = 3
        both.open(1, [5, 6, 7])
        await until(lambda: not both.asking(), "the Grant does not arrive")
        both.commit(1)  # no layer was reported, for none has to leave
        await both.unpinned(1)
        assert both.of(Closed)[0].bytes == 0 and both.equal(1)


def landed(both: Pair, size: int) -> bool:
    return both.target.writes * (32 << 10) == size


async def test_layers_leave_while_later_ones_are_computed(way: Way) -> None:
    async with pair(way) as both:
        both.open(1, list(range(1, 9)))
        for place in range(LAYER_COUNT):
            for upto in (3, 8):
                both.outbound.handle(LayerReady(1, 0, place, upto))
                expected = (place * 8 + upto) * (32 << 10)
                await until(partial(landed, both, expected), "a layer did not leave")
        both.commit(1)
        await both.unpinned(1)
        assert both.equal(1)


@pytest.mark.parametrize("window", [1, 40 << 10, 100 << 10])
async def test_tiny_windows(way: Way, window: int) -> None:
    async with pair(way, replace(UNREPEATED, frame=64 << 10, window=window)) as both:
        for number in range(4):
            both.run(number, [number * 8 + 1 + at for at in range(8)])
        await both.unpinned(*range(4))  # credit that comes by probes only comes too late
        assert all(both.equal(number) for number in range(4))


async def test_cancels_everywhere_leave_nothing_held(way: Way) -> None:
    async with pair(way, TransferConfig(frame=32 << 10, window=64 << 10)) as both:
        choice = random.Random(5)
        for number in range(40):
            both.open(number, [1 + number * 4 + at for at in range(4)])
        for number in range(40):
            both.compute(number)
            if choice.random() < 0.5:
                both.commit(number)
            await asyncio.sleep(0)  # other tasks' turn
            if choice.random() < 0.5:
                both.outbound.handle(AbortHandoff(number, "cancelled"))
            else:
                both.inbound.handle(CancelAttempt(AttemptKey(f"r{number}", 0, 1)))
        await both.unpinned(*range(40))
        landed = {event.key for event in both.of(Landed)}
        for key in landed:
            both.inbound.handle(HandoffOver(key))
        await until(lambda: set(both.reserved) <= landed, "blocks are held by nobody")
        assert both.inbound.side.handoffs == {} and not both.unclosed()
        assert len(both.of(Closed)) == len(both.of(Unpinned)) == 40


async def test_probes_keep_a_slow_prefill_alive(way: Way) -> None:
    async with pair(way, TransferConfig(silence=0.4, repeat_ms=50)) as both:
        both.open(1, [1, 2])
        begin = time.monotonic()
        await until(lambda: time.monotonic() > begin + 1.2, "time stands still")
        both.compute(1)
        both.commit(1)
        await both.unpinned(1)
        assert both.of(Closed)[0].outcome == "accepted" and both.equal(1)


def binds(socket: zmq.asyncio.Socket, address: str) -> bool:
    try:
        socket.bind(address)
    except zmq.ZMQError:
        return False
    return True


async def test_a_restarted_receiver_ends_the_old_handoffs(way: Way) -> None:
    async with pair(way, replace(CONFIG, silence=60.0)) as both:  # silence is not what ends them
        both.granting = False
        both.open(1, [1, 2])
        await until(lambda: both.of(BlocksWanted) and both.outbound.links(), "the Open does not arrive")
        address = both.inbound.handoff_address
        await both.inbound.close()
        other = both.receiver(CONFIG, "decode-2")
        await until(partial(binds, other._socket, address), "the port stays taken")  # it gets the same by chance
        await both.unpinned(1)
        is_pool = way["kv_transport"] == "pool"  # whose socket ends first
        assert both.of(Closed)[0].reason == ("connection_lost" if is_pool else "peer_restarted")
        await other.close()


async def test_room_is_waited_for_as_long_as_the_decode_side_says_that_it_is(way: Way) -> None:
    async with pair(way, TransferConfig(grant_deadline=0.3, repeat_ms=10, silence=0.4)) as both:
        both.granting = False
        both.run(1, [1, 2])
        both.open(2, [3])
        assert both.asking() == both.unclosed() == {1, 2}
        (link,) = both.outbound._links.values()
        waiting = link.side.handoffs[1]
        await until(lambda: waiting._answered > waiting.since + 0.6, "the decode side does not say so")
        assert both.asking() == {1, 2}
        both.outbound.handle(AbortHandoff(2, "cancelled"))
        await both.unpinned(2)
        both.inbound.handle(BlocksGranted(HandoffKey(PREFILL, 2), ([3],), (0,)))  # too late
        both.granting = True
        both.on_inbound(both.of(BlocksWanted)[0])
        await both.unpinned(1)
        assert {closed.handoff: closed.outcome for closed in both.of(Closed)} == {1: "accepted", 2: "failed"}
        assert both.equal(1)


async def test_refusals(way: Way) -> None:
    async with pair(way) as both:
        both.granting = False
        both.open(1, [1, 2])
        await until(lambda: both.of(BlocksWanted), "the Open does not arrive")
        both.inbound.handle(BlocksRefused(HandoffKey(PREFILL, 1), "full", "no room for 2 blocks", True))
        both.inbound.drain()
        both.open(2, [3])
        await both.unpinned(1, 2)
        assert [(e.reason, e.retryable) for e in both.of(Closed)] == [("full", True), ("draining", True)]


async def test_malformed_frames_are_counted_and_harm_nobody(way: Way) -> None:
    async with pair(way) as both:
        context = zmq.asyncio.Context()
        enemy = dealer(context, both.inbound.handoff_address, KEYS)  # one of ours that has lost its mind
        choice = random.Random(3)
        messages = (opening(), layer(0, 0, 0, 2), commit(1, 1, 1))
        seeds = [encode(replace(message, sender="enemy")) for message in messages] + [encode(messages[2])]
        sent = 0
        both.open(1, [1, 2, 3])
        while sent < 400:
            data = bytearray(choice.choice(seeds))
            for _ in range(choice.randrange(4)):
                data[choice.randrange(len(data))] = choice.randrange(256)
            frames: list[bytes | memoryview] = [bytes(data), *([os.urandom(7)] * choice.randrange(3))]
            frames = choice.choice([frames, [b""], [b"\xff" * 9], frames])
            if send_now(enemy, frames):
                sent += 1
            else:
                await asyncio.sleep(0.001)
        both.compute(1)
        both.commit(1)
        await both.unpinned(1)
        assert both.of(Closed)[0].outcome == "accepted" and both.equal(1)
        await until(lambda: both.inbound.refused["cut off"], "it was not cut off")
        assert both.inbound.refused["malformed"] == CONFIG.malformed_rate + 1
        assert both.inbound._tasks.error is None
        enemy.close(0)
        context.destroy(0)


async def test_a_sender_survives_nonsense() -> None:
    network = Network.of(SECRET)
    socket, address = router(network.context, LOOPBACK_ADDRESS, KEYS)
    events: list[ToPrefillEngine] = []
    outbound = PrefillTransfer(CONFIG, PREFILL, SPEC, ArrayPool(SPEC, 8), network, events.append)
    outbound.handle(opened(16, decode_address=address, deadline=time.monotonic() + 60, blocks=([1],)))
    link, _ = await socket.recv_multipart()
    assert send_now(socket, [link, b"\xc1nonsense"])
    await until(lambda: outbound.counts().dropped["malformed"] == 1, "it was not counted")
    assert outbound._tasks.error is None
    await outbound.close()
    assert [type(event) for event in events] == [Closed, Unpinned]
    socket.close(0)
    await network.close()


async def test_open_twice_is_a_programmers_mistake(way: Way) -> None:
    async with pair(way) as both:
        both.open(1, [1])
        with pytest.raises(IllegalMove):
            both.open(1, [1])


async def test_two_lives_of_a_sender_do_not_meet(way: Way) -> None:
    async with pair(way) as both:
        again = both.sender(CONFIG, "prefill-2")
        both.open(1, [1, 2])
        await until(lambda: both.of(BlocksWanted), "the Open does not arrive")
        again.handle(both.opened(1, [3], attempt=2))
        await until(lambda: both.of(Dropped), "the lower attempt lives")
        assert both.of(Dropped)[0] == Dropped(HandoffKey(PREFILL, 1), "superseded")
        await both.unpinned(1)
        await again.close()


# infra.network.sockets ------------------------------------------------------------------------------------------------


async def test_the_tracker_watches_every_frame() -> None:
    context = zmq.asyncio.Context()
    gatekeeper = Gatekeeper(context, KEYS)
    socket, address = router(context, LOOPBACK_ADDRESS, KEYS)
    sender = dealer(context, address, KEYS)
    large = memoryview(bytearray(4 << 20))
    frames: list[bytes | memoryview] = [b"header", large, b"small"]  # the last is copied, and done at once
    tracker = None
    while tracker is None:
        tracker = send_now_tracked(sender, frames)
        await asyncio.sleep(0.001)
    sender.close(0)
    await until(lambda: tracker.done, "closing did not end it")
    await gatekeeper.close()
    socket.close(0)
    context.destroy(0)
    assert len(tracker.peers) == 2  # the copied frames share one that is always done


async def test_sending_behind_a_poll_does_not_queue() -> None:
    context = zmq.asyncio.Context()
    sender = dealer(context, "tcp://127.0.0.1:1", KEYS)  # nobody there
    waiting: Any = sender
    poll = asyncio.ensure_future(waiting.poll(50, zmq.POLLOUT))
    await asyncio.sleep(0)
    assert send_now(sender, [b"x"]) is False
    assert await poll == 0
    sender.close(0)
    context.destroy(0)


async def test_an_ipc_path_is_checked(tmp_path: Path) -> None:
    context = zmq.asyncio.Context()
    for wrong in (tmp_path / ("x" * 200), tmp_path / "missing" / "kv"):
        with pytest.raises(ConfigError, match=wrong.name[:10]):
            payload_ipc_router(context, wrong)
    context.destroy(0)


async def test_a_unix_socket_leaves_nothing_behind() -> None:
    async with pair(WAYS["ipc"]) as both:
        path = Path(both.inbound._payload_sockets.ipc.removeprefix("ipc://"))
        assert path.is_socket() and path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.parent.exists()


async def test_blocks_that_a_device_still_computes_are_not_waited_for(way: Way) -> None:
    """Their payload leaves when they are there; meanwhile the thread does other things, as answering an Abort."""
    async with pair(way) as both:
        there = False
        both.source.ready = lambda group, layer, blocks: there  # type: ignore[method-assign]
        both.open(1, [1, 2, 3])
        both.compute(1)
        both.commit(1)
        both.open(2, [4])
        both.compute(2)
        await until(lambda: not both.asking(), "the Grants do not arrive")
        both.outbound.handle(AbortHandoff(2, "cancelled"))
        await both.unpinned(2)
        assert both.target.payloads == 0 and both.outbound._tasks.error is None
        there = True
        await both.unpinned(1)
        assert both.equal(1)
