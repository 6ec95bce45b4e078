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
                number = each.heard + more
                whole = [KeyNews(NOT_HEARD, number, part, b"", at, 2) for at, part in enumerate((kept, lost))]
                for piece in chance.sample(whole, chance.randrange(1, 3)):
                    each.take(piece)
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


def test_a_piece_of_all_keys_counts_when_it_comes_and_the_last_one_ends_what_was_before() -> None:
    holders, worker = BlockHolders[KeptBlocks](), KeptBlocks()
    worker.joins(holders)
    worker.take(KeyNews(NOT_HEARD, 1, packed([1, 2]), b"", 0, 1))
    assert worker.told and worker.heard == 1
    worker.take(KeyNews(NOT_HEARD, 9, packed([2, 3]), b"", 1, 2))
    assert [key in worker for key in (1, 2, 3)] == [True, True, True] and worker.heard == 1
    worker.take(KeyNews(NOT_HEARD, 9, packed([4]), b"", 0, 2))
    assert [key for key in range(6) if key in worker] == [2, 3, 4] and worker.heard == 9
    assert [key for key in range(6) if holders.of(key)] == [2, 3, 4]


def test_no_dict_of_the_index_grows_long() -> None:
    """A dict that grows is made anew in one go, which would block the event loop."""
    holders, keys, chance = BlockHolders[int](), 100_000, random.Random(0)
    holders.add(0, [chance.getrandbits(64) for _ in range(keys)])
    assert len(holders) == keys and max(map(len, holders._divisions.values())) < 100
