"""Gateways know which blocks a worker has, whatever gets lost, comes twice, or in another order on the way."""

import struct
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.messages.gateway import NOT_HEARD, KeyNews
from contracts.messages.wire import encode
from gateway.workers.holders import BlockHolders
from gateway.workers.kept_blocks import KeptBlocks
from worker.gateways import key_log
from worker.gateways.key_log import HEARD_TIMEOUT_S, KEYS_IN_MESSAGE, MAX_CHANGES, KeyLog


def joined(*keys: int) -> bytes:
    return struct.pack(f"<{len(keys)}Q", *keys)


class Ends:
    """A worker's log, what it has, a gateway's set, and messages on their way between them."""

    def __init__(self) -> None:
        self.log, self.kept = KeyLog(), KeptBlocks()
        self.have: set[int] = set()
        self.way: list[KeyNews] = []
        self.now = 0.0

    def change(self, kept: set[int], lost: set[int]) -> None:
        self.have = (self.have - lost) | kept
        self.log.change(joined(*sorted(kept)), joined(*sorted(lost - kept)))

    def ping(self) -> None:
        self.log.heard("gateway", self.kept.heard, self.now)

    def send(self, most: int = 1 << 30) -> None:
        for _ in range(most):
            news = self.log.owed("gateway")
            if news is None:
                return
            self.log.sent("gateway", news, self.now)
            self.way.append(news)

    def arrive(self) -> None:
        for news in self.way:
            self.kept.take(news)
        self.way.clear()

    def settle(self) -> int:
        """Nothing is lost any more; returns the messages until both agree."""
        messages = 0
        for _ in range(8):
            self.now += HEARD_TIMEOUT_S
            self.ping()
            self.send()
            messages += len(self.way)
            self.arrive()
        return messages

    def knows(self) -> set[int]:
        return {key for key in range(9000) if key in self.kept}


KEYS = st.sets(st.integers(0, 40), max_size=12)


@given(st.data())
def test_both_agree_after_any_loss_repetition_and_disorder(data: st.DataObject) -> None:
    with patch.object(key_log, "KEYS_IN_MESSAGE", data.draw(st.sampled_from((4, KEYS_IN_MESSAGE)))):
        agree_in_the_end(data)


def agree_in_the_end(data: st.DataObject) -> None:
    ends, holders = Ends(), BlockHolders[KeptBlocks]()
    ends.kept.joins(holders)
    ends.ping()
    for _ in range(data.draw(st.integers(0, 25))):
        match data.draw(st.sampled_from(("change", "change", "lose", "twice", "mix", "arrive", "wait"))):
            case "change":
                ends.change(data.draw(KEYS), data.draw(KEYS))
                ends.send(data.draw(st.integers(0, 3)))
            case "wait":
                ends.now += HEARD_TIMEOUT_S / 2
                ends.ping()
            case "lose" if ends.way:
                del ends.way[data.draw(st.integers(0, len(ends.way) - 1))]
            case "twice" if ends.way:
                ends.way.append(data.draw(st.sampled_from(ends.way)))
            case "mix":
                ends.way = data.draw(st.permutations(ends.way))
            case "arrive":
                ends.arrive()
    ends.settle()
    assert ends.knows() == ends.have and ends.kept.heard == ends.log.number
    assert {key for key in range(50) if holders.of(key)} == ends.have
    assert ends.log.owed("gateway") is None


def test_changes_cost_one_message_and_nothing_is_said_twice() -> None:
    ends = Ends()
    ends.ping()
    ends.send()
    ends.arrive()
    assert ends.kept.told and len(ends.kept) == 0
    ends.change({1, 2, 3}, set())
    ends.change({4}, {1})
    ends.send()
    assert [(news.kept, news.lost) for news in ends.way] == [(joined(2, 3, 4), joined(1))]
    ends.arrive()
    assert ends.knows() == {2, 3, 4} and ends.settle() == 0


def test_all_keys_come_in_pieces_to_whoever_missed_too_much() -> None:
    ends = Ends()
    ends.ping()
    ends.send()
    ends.arrive()
    for first in range(0, 3 * MAX_CHANGES, 1000):
        ends.change(set(range(first % 9000, first % 9000 + 1000)), set())
        ends.change(set(), set(range(first % 9000, first % 9000 + 500)))
    ends.send()
    assert [news.pieces for news in ends.way] == [5] * 5, "changes are forgotten, and so all keys are told"
    assert all(len(encode(news)) < 10_000 for news in ends.way)
    ends.arrive()
    assert ends.knows() == ends.have


@pytest.mark.parametrize("both_hear", [True, False])
def test_changes_are_kept_until_all_gateways_have_confirmed_them(both_hear: bool) -> None:
    log = KeyLog()
    for gateway in ("first", "second"):
        log.heard(gateway, NOT_HEARD, 0.0)
        while (news := log.owed(gateway)) is not None:
            log.sent(gateway, news, 0.0)
    for first in range(0, 4 * KEYS_IN_MESSAGE, KEYS_IN_MESSAGE):
        log.change(joined(*range(first, first + KEYS_IN_MESSAGE)), b"")
        for gateway in ("first", "second") if both_hear else ("first",):
            news = log.owed(gateway)
            assert news is not None and not news.pieces, "only what changed is told"
            log.sent(gateway, news, 0.0)
            log.heard(gateway, log.number, 0.0)
    log.heard("second", 0, HEARD_TIMEOUT_S)  # as if it had heard nothing
    news = log.owed("second")
    assert news is not None and bool(news.pieces) == both_hear


def test_what_is_told_of_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_log, "MAX_KEYS", 10)
    ends = Ends()
    ends.ping()
    for key in range(30):
        ends.change({key}, set())
        ends.send()
    ends.arrive()
    assert ends.knows() == set(range(20, 30))


def test_a_gateway_that_is_gone_is_forgotten_and_begins_anew() -> None:
    ends = Ends()
    ends.change({1}, set())
    ends.settle()
    ends.log.forget(["gateway", "another"])
    assert ends.log.owed("gateway") is None
    ends.kept = KeptBlocks()
    assert ends.kept.heard == NOT_HEARD
    ends.settle()
    assert ends.knows() == {1}


@pytest.mark.parametrize(("has", "blocks"), [(set(), 0), ({1}, 1), ({1, 2, 3}, 3), ({1, 2, 3, 4, 5}, 5), ({9}, 0)])
def test_a_prompts_leading_blocks_are_counted(has: set[int], blocks: int) -> None:
    kept = KeptBlocks()
    kept.take(KeyNews(NOT_HEARD, 1, joined(*has), b"", 0, 1))
    assert kept.blocks([1, 2, 3, 4, 5]) == blocks and kept.blocks([]) == 0


def test_what_was_sent_a_moment_ago_is_not_sent_again() -> None:
    """The gateway's word was on its way when the newest changes were sent: it is no sign that these are lost."""
    ends = Ends()
    ends.ping()
    ends.change({1}, set())
    ends.settle()
    ends.now += HEARD_TIMEOUT_S
    ends.ping()
    ends.now += HEARD_TIMEOUT_S
    ends.change({2}, set())
    ends.send()
    ends.ping()
    assert ends.log.owed("gateway") is None
    ends.arrive()
    assert ends.knows() == {1, 2}
