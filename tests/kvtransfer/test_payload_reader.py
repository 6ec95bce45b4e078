"""The next payload is being read while one is sent: what will leave is known ahead, and nothing is read in vain."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from contracts.kinds import Codec
from kvtransfer.events import AbortHandoff, Closed, ToPrefillEngine
from kvtransfer.payload_reader import PayloadReader
from kvtransfer.protocol.payloads import Payload
from tests.kvtransfer.array_pool import ArrayPool
from tests.kvtransfer.pair import CONFIG, LAYER_COUNT, SPEC, WAYS, Pair, pair, until

PAYLOAD_BLOCKS = 4  # of 32 KiB each, in a payload of `CONFIG.frame`


class LoggedPool(ArrayPool):
    """Notes when reads begin and end, and waits for a device where `computed` says so."""

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        super().__init__(SPEC, 256, seed=1)
        self.log = log
        self.computed: Callable[[Sequence[int]], bool] = lambda blocks: True

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        return self.computed(blocks)

    def begin_read(
        self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none"
    ) -> Callable[[], list[memoryview]]:
        place, views = (layer, *blocks), super().begin_read(group, layer, blocks, codec)
        self.log.append(("begin", place))

        def finish() -> list[memoryview]:
            self.log.append(("end", place))
            return views()

        return finish


def logged(both: Pair) -> LoggedPool:
    """Has the sender's pool and channel note what they do."""
    log: list[tuple[Any, ...]] = []
    pool = both.source = LoggedPool(log)
    both.outbound._memory = pool
    return pool


async def opened(both: Pair, pool: LoggedPool, handoffs: dict[int, list[int]]) -> None:
    """Opens handoffs whose payloads leave at once from now on, and notes when each does."""
    for number, blocks in handoffs.items():
        both.open(number, blocks)
    await until(lambda: not both.asking(), "the Grants do not arrive")
    (link,) = both.outbound._links.values()
    assert link.channel is not None
    send = link.channel.send

    def sent(header: Any, views: Sequence[memoryview], blocks: Sequence[int] = ()) -> Any:
        pool.log.append(("send", header.handoff, header.layer, header.first) if views else ("probe",))
        return send(header, views, blocks)

    link.channel.send = sent  # type: ignore[method-assign]


@pytest.mark.parametrize("handoffs", [1, 2, 3])
async def test_each_payload_is_read_once_while_the_one_before_is_sent(handoffs: int) -> None:
    async with pair(WAYS["shm"], CONFIG) as both:
        pool = logged(both)
        # Of different sizes, so that handoffs leave the round at different times.
        tables = {number: list(range(1 + 20 * number, 1 + 20 * number + 9 + number)) for number in range(handoffs)}
        await opened(both, pool, tables)
        for number in tables:
            both.compute(number)
            both.commit(number)
        await both.unpinned(*tables)
        assert all(event.outcome == "accepted" for event in both.of(Closed)) and all(map(both.equal, tables))
        payloads = LAYER_COUNT * sum(-(-len(blocks) // PAYLOAD_BLOCKS) for blocks in tables.values())
        begun = [place for kind, *(place,) in (each for each in pool.log if each[0] == "begin")]
        assert len(begun) == len(set(begun)) == payloads
        kinds = [each[0] for each in pool.log if each[0] != "probe"]
        ahead = ["end", "begin", "send"] * (payloads - 1)
        assert kinds == ["begin", *ahead, "end", "send"]


async def test_a_payload_that_a_device_still_computes_is_not_read_ahead() -> None:
    async with pair(WAYS["shm"], CONFIG) as both:
        pool = logged(both)
        late = True
        pool.computed = lambda blocks: 5 not in blocks or not late
        await opened(both, pool, {1: list(range(1, 9))})
        both.compute(1)
        await until(lambda: [each for each in pool.log if each[0] == "send"], "the first does not leave")
        assert [each[1] for each in pool.log if each[0] == "begin"] == [(0, 1, 2, 3, 4)]
        late = False
        both.commit(1)
        await both.unpinned(1)
        assert both.equal(1)


async def test_what_was_read_ahead_is_over_before_its_blocks_are_used_otherwise() -> None:
    async with pair(WAYS["shm"], CONFIG) as both:
        pool = logged(both)
        await opened(both, pool, {1: list(range(1, 9))})
        both.compute(1)
        (link,) = both.outbound._links.values()
        assert link._send_payload() and pool.log[-1][0] == "send"
        assert [each[0] for each in pool.log].count("begin") == 2
        report = both.outbound.report

        def reported(event: ToPrefillEngine) -> None:
            pool.log.append((type(event).__name__,))
            report(event)

        both.outbound.report = reported  # type: ignore[method-assign]
        both.outbound.handle(AbortHandoff(1, "cancelled"))
        await both.unpinned(1)
        kinds = [each[0] for each in pool.log]
        assert kinds.count("end") == kinds.count("begin") == 2
        assert kinds.index("Closed") > max(at for at, kind in enumerate(kinds) if kind == "end")


def test_what_was_begun_for_one_handoff_is_not_sent_for_another() -> None:
    pool = LoggedPool([])
    reader, payload = PayloadReader(pool), Payload(0, 0, 0, 2, 2 * SPEC.groups[0].block_bytes)
    for handoff, blocks in ((1, [1, 2]), (2, [3, 4])):
        assert reader.begin(handoff, payload, blocks, "none")
    (found,) = reader.finish()
    assert bytes(found) == pool.arrays[0, 0][[3, 4]].tobytes()
    assert pool.log.count(("end", (0, 1, 2))) == 1, "the first is not left under way"
