"""The index of blocks says of each block who has it, whatever workers report, expect, lose, and whoever leaves."""

import random
import struct

from contracts.messages.gateway import NOT_HEARD, KeyNews
from gateway.workers.holders import BlockHolders
from gateway.workers.kept_blocks import KEYS_PER_STEP, KeptBlocks

KEYS = range(40)


def packed(keys: list[int]) -> bytes:
    return struct.pack(f"<{len(keys)}Q", *keys)


def test_the_index_agrees_with_every_worker() -> None:
    chance, holders = random.Random(0), BlockHolders[KeptBlocks]()
    workers = [KeptBlocks() for _ in range(5)]
    for each in workers:
        each.joins(holders)
    several = 0
    for second in range(2000):
        each, some = chance.choice(workers), chance.sample(KEYS, chance.randrange(8))
        kept, lost, more = packed(some[::2]), packed(some[1::2]), chance.randrange(1, 3)
        match chance.choice(["changes", "all", "expects", "leaves"]):
            case "changes":
                each.take(KeyNews(each.heard, each.heard + more, kept, lost))
            case "all":
                each.take(KeyNews(NOT_HEARD, each.heard + more, kept, b"", 0, 1))
            case "expects":
                each.expects(some, second / 4)
            case "leaves":
                steps = sum(1 for _ in each.leaves())
                assert steps <= 1 and len(each) == 0
                each.joins(holders)
        for key in KEYS:
            assert set(holders.of(key)) == {one for one in workers if key in one}
            several += len(holders.of(key)) > 1
        assert len(holders) == sum(any(key in one for one in workers) for key in KEYS)
    assert several > 1000


def test_a_worker_leaves_step_by_step() -> None:
    holders, one, other = BlockHolders[KeptBlocks](), KeptBlocks(), KeptBlocks()
    for each, keys in ((one, range(3 * KEYS_PER_STEP)), (other, range(10))):
        each.joins(holders)
        each.take(KeyNews(NOT_HEARD, 1, packed(list(keys)), b"", 0, 1))
    left = [len(holders) for _ in one.leaves()]
    assert left[-1] == 10 and left[:-1] == [2 * KEYS_PER_STEP + 10, KEYS_PER_STEP + 10]
    assert all(list(holders.of(key)) == [other] for key in range(10)) and holders.telling == {other}
