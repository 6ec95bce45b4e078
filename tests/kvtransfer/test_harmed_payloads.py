"""Tests what becomes of payloads on the way, over every transport: no handoff is taken that is not whole."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from contracts.messages.wire import encode
from kvtransfer.events import (
    Closed,
    Dropped,
    Landed,
    LayerReady,
)
from kvtransfer.handoff import HandoffKey
from tests.kvtransfer.meddler import Fate, Frames, Meddler, drop, header_of
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
    moved = layer(header.number, (header.layer + 1) % LAYER_COUNT, header.first, header.count, offset=header.offset)
    claimed = {name: getattr(header, name) for name in ("sender", "receiver", "handoff", "size")}
    frames[at] = encode(type(header)(**({name: getattr(moved, name) for name in moved.__struct_fields__} | claimed)))
    return [frames]


HARMFUL_FATES: dict[str, Callable[[], dict[int, Fate]]] = {
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


@pytest.mark.parametrize("harm", HARMFUL_FATES)
async def test_what_is_harmed_is_never_taken(way: Way, harm: str) -> None:
    async with pair(way, quick(way)) as both:
        fates = HARMFUL_FATES[harm]()
        meddler = Meddler(await both.joined(), fates)
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
        await both.unpinned(1)
        closed = both.of(Closed)[1]
        assert max(fates) < len(meddler.passed) <= 6, "an Abort may come before the last payloads leave"
        assert (closed.outcome, closed.retryable) == ("failed", True) and len(both.of(Landed)) == 1
        assert [event.key.handoff for event in both.of(Dropped)] == [1]
        assert set(both.reserved) == {HandoffKey(PREFILL, 0)} and not both.unclosed()
        both.run(2, BLOCKS_OF_TWO_PAYLOADS)  # as the next attempt would
        await both.unpinned(2)
        assert both.of(Closed)[2].outcome == "accepted" and both.equal(2)


async def test_a_payload_in_the_ring_that_was_altered_is_never_taken() -> None:
    async with pair(WAYS["shm"], QUICK) as both:
        meddler = Meddler(await both.joined(), {})
        ring = meddler.ring
        assert ring is not None

        def spoil(frames: Frames) -> list[Frames]:
            header = header_of(frames)
            assert header is not None
            ring.views(header.offset, header.size)[0][5] ^= 1
            return [frames]

        meddler._fates[4] = spoil
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
        await both.unpinned(1)
        assert both.of(Closed)[1].reason == "bad_digest" and len(both.of(Landed)) == 1


async def test_repeated_payloads_are_dropped(way: Way) -> None:
    async with pair(way, quick(way)) as both:
        link = await both.joined()
        before = both.inbound.side.strays  # repeated messages of the first handoff
        Meddler(link, {1: twice, 5: twice})
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
        await both.unpinned(1)
        assert both.of(Closed)[1].outcome == "accepted" and both.equal(1)
        counted = lambda: both.inbound.side.strays + both.inbound.refused["unsealed"] == before + 2  # noqa: E731
        await until(counted, "nobody counted them")


async def test_payloads_of_an_earlier_handoff_are_dropped(way: Way) -> None:
    """They are replayed with their own headers, among those of another handoff."""
    async with pair(way, quick(way)) as both:
        meddler = Meddler(await both.joined(), {})
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
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
        meddler = Meddler(await both.joined(), {})
        other = both.sender(both.config, "prefill-2")
        other.handle(both.opened(7, [100]))
        await until(lambda: other._links[DECODE].channel is not None, "it does not join")
        foreign: list[Frames] = []
        theirs = Meddler(other._links[DECODE], {0: lambda frames: foreign.append(frames) or []})  # type: ignore[func-returns-value]
        for place in range(LAYER_COUNT):
            other.handle(LayerReady(7, 0, place, 1))
        await until(lambda: theirs.passed, "nothing leaves")
        meddler._fates[0] = lambda frames: [*foreign, frames]
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
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
        Meddler(await both.joined(), {2: another_sender})
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
        await both.unpinned(1)
        assert both.of(Closed)[1].outcome == "failed"
        assert both.inbound.refused["malformed"] + both.inbound.refused["unsealed"] == 1


async def test_frames_without_a_seal_are_refused_where_one_is_asked_for() -> None:
    async with pair(WAYS["tcp, sealed"], QUICK) as both:
        link = await both.joined()
        assert link.channel is not None and link.channel.sealed
        Meddler(link, {0: lambda frames: [frames[1:]], 1: lambda frames: [frames[1:2]]})
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
        await both.unpinned(1)
        assert both.of(Closed)[1].outcome == "failed" and both.inbound.refused["malformed"] == 2
