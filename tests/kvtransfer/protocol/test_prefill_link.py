"""All handoffs of a link on the prefill side: whose turn it is, the window, the peer's silence, what costs little."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from contracts.messages.handoff import Abort, Aborted, Accepted, Credit, Grant
from kvtransfer.events import LayerReady, Unpinned
from kvtransfer.protocol.instructions import Lost
from kvtransfer.protocol.prefill_events import FrameDone
from kvtransfer.protocol.prefill_handoff import PrefillHandoffState
from kvtransfer.protocol.prefill_link import PrefillLink
from tests.effort import lines_run
from tests.kvtransfer.protocol.prefill_side import (
    ABORT,
    Side,
    aborting,
    closed,
    committed,
    flying,
    opening,
    outcome,
    ready,
    sent,
    streaming,
)
from tests.kvtransfer.waiters import Waiters
from tests.kvtransfer.world import CONFIG, DECODE, PREFILL, SPEC, grant, opened, to_prefill


def test_waiting_costs_the_same_for_each_however_many_wait() -> None:
    """A thousand may wait on one link, and its thread has tokens to send beside them."""

    def effort(handoffs: int) -> float:
        waiters = Waiters(handoffs, 16)
        return lines_run(lambda: waiters.wait(5.0, 0.0)) / waiters.messages

    assert effort(256) < 2 * effort(16)


def test_a_credit_costs_little_more_beside_handoffs_that_it_does_not_concern() -> None:
    """A step over a burst of prompts sends a payload for each prompt and layer, and each may bring a Credit."""

    def effort(handoffs: int) -> float:
        link = PrefillLink(CONFIG, PREFILL, DECODE, SPEC)
        for number in range(handoffs):
            link.open(opened(handoff=number), 0.0)
            link.receive(to_prefill(Grant, handoff=number, held=[0], limit=1 << 20), 0.0)

        def send() -> None:
            for number in range(handoffs):
                link.handle(LayerReady(number, 0, 0, 3), 0.0)
                turn = link.next_payload()
                assert turn is not None
                header = link.header(*turn)
                link.payload_taken(*turn, 0, 0.0)
                link.handle(FrameDone(number, header.number), 0.0)
                link.receive(Credit(sender=DECODE, receiver=PREFILL, seen=link.window.sent, limit=1 << 20), 0.0)

        return lines_run(send) / handoffs

    assert effort(32) < 2 * effort(8)


def test_window_stops_and_credit_goes_on() -> None:
    side = opening()
    side.do(grant(limit=20))
    side.do(LayerReady(1, 0, 0, 3))
    assert len(side.send_all()[0]) == 1  # 16 bytes of 20
    side.do(Credit(sender=DECODE, receiver=PREFILL, seen=16, limit=36))
    assert len(side.send_all()[0]) == 1
    side.do(Credit(sender=DECODE, receiver=PREFILL, seen=0, limit=0))  # a late one
    assert side.senders.window.limit == 36


def test_a_payload_larger_than_the_window_goes_alone() -> None:
    side = opening()
    side.do(grant(limit=1))
    side.do(LayerReady(1, 0, 0, 3))
    assert len(side.send_all()[0]) == 1
    side.do(Credit(sender=DECODE, receiver=PREFILL, seen=15, limit=16))
    assert side.send_all()[0] == []
    side.do(Credit(sender=DECODE, receiver=PREFILL, seen=16, limit=17))
    assert len(side.send_all()[0]) == 1


def test_any_credit_ends_io_references_that_it_covers() -> None:
    side = flying()
    assert list(side.sender.sent.flying.values()) == [16, 24]
    side.do(Credit(sender=DECODE, receiver=PREFILL, seen=23, limit=2000))
    assert list(side.sender.sent.flying.values()) == [24]
    side.do(ABORT)
    assert side.do(Credit(sender=DECODE, receiver=PREFILL, seen=24, limit=2000)) == [Unpinned(1)]
    assert side.senders.handoffs == {}


@pytest.mark.parametrize(
    ("start", "ends"),
    [
        (opening, ("failed", "peer_silent", True)),
        (streaming, ("failed", "peer_silent", True)),
        (committed, ("failed", "peer_silent", True)),
        (aborting, ("failed", "cancelled", False)),
    ],
    ids=["OPENING", "STREAMING", "COMMITTED", "ABORTING"],
)
def test_peer_dead_closes(start: Callable[[], Side], ends: tuple[str, str, bool]) -> None:
    side = start()
    assert outcome(side.senders.lost("peer_silent", 0.0)) == ends
    assert side.sender.state is PrefillHandoffState.CLOSED


def test_peer_dead_when_closed_changes_nothing() -> None:
    assert closed().senders.lost("peer_silent", 0.0) == []


def test_new_epoch_is_the_peers_death() -> None:
    side = streaming()
    stranger = Abort(sender="decode-2", receiver=PREFILL, handoff=1, reason="ended")
    assert side.do(stranger) == [Lost("peer_restarted")]


def test_a_message_for_another_epoch_of_ours_is_dropped_and_counted() -> None:
    side = opening()
    assert side.do(Abort(sender=DECODE, receiver="prefill-0", handoff=1, reason="x")) == []
    assert side.senders.strays == 1


@pytest.mark.parametrize("start", [streaming, committed, aborting], ids=lambda start: start.__name__)
def test_a_silent_peer_is_dead(start: Callable[[], Side]) -> None:
    side = start()
    for tenth in range(50):
        assert not any(isinstance(move, Lost) for move in side.senders.tick(tenth / 10))
    assert side.senders.tick(5.0) == [Lost("payloads_unanswered" if start is streaming else "peer_silent")]


def test_answers_to_other_messages_are_none_to_payloads() -> None:
    side = streaming()
    for tenth in range(50):
        assert not any(isinstance(move, Lost) for move in side.senders.tick(tenth / 10))
        side.senders.receive(to_prefill(Aborted, handoff=9), tenth / 10)
    assert side.senders.tick(5.0) == [Lost("payloads_unanswered")]


def test_our_own_pause_is_not_the_peers_silence() -> None:
    side = committed()
    side.senders.tick(0.0)
    assert not any(isinstance(move, Lost) for move in side.senders.tick(7.0))


def test_forgotten_handoffs_still_answer() -> None:
    side = opening()
    side.do(ABORT)
    assert side.senders.handoffs == {}
    assert sent(side.do(grant())) == [Abort]
    assert sent(side.do(ABORT)) == [Aborted]
    assert side.do(to_prefill(Accepted)) == []


def test_turns_alternate_between_handoffs() -> None:
    senders = PrefillLink(CONFIG, PREFILL, DECODE, SPEC)
    for number in (1, 2):
        senders.open(opened(40, handoff=number), 0.0)
        senders.receive(replace(grant(), handoff=number), 0.0)
        senders.handle(LayerReady(number, 0, 0, 10), 0.0)
    order = []
    while (turn := senders.next_payload()) is not None:
        order.append(turn[0].number)
        senders.payload_taken(*turn, 0, 0.0)
    assert order == [1, 2] * 5


def test_no_more_is_under_way_than_the_channel_has_room_for() -> None:
    """Whatever the credit is, what was not read from a ring must not be overwritten."""
    side = ready(streaming())
    side.senders.use_channel(capacity=24, frame=8)
    headers, _ = side.send_all()
    assert [header.offset for header in headers] == [0, 8, 16]
    side.do(Credit(sender=DECODE, receiver=PREFILL, seen=8, limit=1 << 20))
    headers, _ = side.send_all()
    assert [header.offset for header in headers] == [24]
