"""Tests every row of the sender's table, by its name."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from contracts.errors import IllegalMove
from contracts.messages.gateway import REASON_CROWDED
from contracts.messages.handoff import (
    Abort,
    Aborted,
    Accepted,
    Branch,
    Commit,
    Credit,
    Grant,
    Layer,
    Open,
    Refused,
    Remind,
    Waiting,
)
from kvtransfer.digest import payload_digest
from kvtransfer.events import AbortHandoff, Closed, LayerReady, Unpinned
from kvtransfer.protocol.instructions import Instruction, Lost, Send
from kvtransfer.protocol.prefill_handoff import FrameDone, PrefillHandoffState
from kvtransfer.protocol.prefill_link import PrefillLink
from tests.effort import lines_run
from tests.kvtransfer.waiters import Waiters
from tests.kvtransfer.world import CONFIG, DECODE, PREFILL, SPEC, TOKENS, grant, opened, to_prefill

S = PrefillHandoffState
ABORT = to_prefill(Abort, reason="bad_digest")
WAITING = to_prefill(Waiting)
CROWD = to_prefill(Refused, reason=REASON_CROWDED)


class Side:
    """Drives one handoff with number 1 by hand."""

    def __init__(self) -> None:
        self.senders = PrefillLink(CONFIG, PREFILL, DECODE, SPEC)
        self.opened = self.senders.open(opened(), 0.0)
        self.sender = self.senders.handoffs[1]

    def do(self, event: object, now: float = 0.0) -> list[Instruction]:
        if isinstance(event, LayerReady | AbortHandoff | FrameDone) or event is TOKENS:
            return self.senders.handle(event, now)
        return self.senders.receive(event, now)  # type: ignore[arg-type]

    def copy_all(self) -> list[int]:
        """Has a device begin to copy all payloads; returns their digests, which are not known yet."""
        digests = []
        while (turn := self.senders.next_payload()) is not None:
            digests.append(payload_digest(0, turn[1].layer, turn[1].first, [bytes(turn[1].size)]))
            assert self.senders.payload_left(*turn, None, 0.0) == []
        return digests

    def send_all(self) -> tuple[list[Layer], list[Instruction]]:
        headers, moves = [], []
        while (turn := self.senders.next_payload()) is not None:
            headers.append(self.senders.header(*turn))
            digest = payload_digest(0, turn[1].layer, turn[1].first, [bytes(turn[1].size)])
            moves += self.senders.payload_left(*turn, digest, 0.0)
        return headers, moves


def opening() -> Side:
    return Side()


def streaming() -> Side:
    side = Side()
    side.do(grant())
    return side


def flying() -> Side:
    side = streaming()
    side.do(LayerReady(1, 0, 0, 3))
    side.send_all()
    return side


def committed() -> Side:
    side = flying()
    side.do(LayerReady(1, 0, 1, 3))
    side.do(TOKENS)
    side.send_all()
    return side


def aborting() -> Side:
    side = Side()
    side.do(AbortHandoff(1, "cancelled"))
    return side


def closed() -> Side:
    """Returns a handoff that is CLOSED, but of which a frame may still be read."""
    side = flying()
    side.do(ABORT)
    return side


STATES: dict[Callable[[], Side], PrefillHandoffState] = {
    opening: S.OPENING,
    streaming: S.STREAMING,
    flying: S.STREAMING,
    committed: S.COMMITTED,
    aborting: S.ABORTING,
    closed: S.CLOSED,
}


def sent(moves: list[Instruction]) -> list[type]:
    return [type(move.message) if isinstance(move, Send) else type(move) for move in moves]


def outcome(moves: list[Instruction]) -> tuple[str, str, bool]:
    (end,) = [move for move in moves if isinstance(move, Closed)]
    return end.outcome, end.reason, end.retryable


ROWS: list[tuple[str, Callable[[], Side], object, PrefillHandoffState, list[type]]] = [
    ("OPENING | Waiting", opening, WAITING, S.OPENING, []),
    ("STREAMING | Waiting", streaming, WAITING, S.STREAMING, []),
    ("COMMITTED | Waiting", committed, WAITING, S.COMMITTED, []),
    ("ABORTING | Waiting", aborting, WAITING, S.ABORTING, []),
    ("CLOSED | Waiting", closed, WAITING, S.CLOSED, []),
    ("OPENING | Refused, the line is full", opening, CROWD, S.OPENING, []),
    ("STREAMING | Refused, the line is full", streaming, CROWD, S.STREAMING, []),
    ("OPENING | Grant", opening, grant(), S.STREAMING, []),
    ("OPENING | bad Grant", opening, grant(held=4), S.ABORTING, [Abort]),
    ("OPENING | Grant that holds less than nothing", opening, grant(held=-1), S.ABORTING, [Abort]),
    ("OPENING | Refused", opening, to_prefill(Refused, reason="full"), S.ABORTING, [Abort]),
    ("OPENING | layer ready", opening, LayerReady(1, 0, 0, 3), S.OPENING, []),
    ("STREAMING | layer ready", streaming, LayerReady(1, 0, 0, 3), S.STREAMING, []),
    ("OPENING | done", opening, AbortHandoff(1, "done"), S.ABORTING, [Abort]),
    ("STREAMING | done", streaming, AbortHandoff(1, "done"), S.ABORTING, [Abort]),
    ("COMMITTED | Accepted", committed, to_prefill(Accepted), S.CLOSED, [Closed, Unpinned]),
    ("OPENING | Cancel", opening, AbortHandoff(1, "cancelled"), S.ABORTING, [Abort]),
    ("STREAMING | Cancel", streaming, AbortHandoff(1, "cancelled"), S.ABORTING, [Abort]),
    ("COMMITTED | Cancel", committed, AbortHandoff(1, "cancelled"), S.ABORTING, [Abort]),
    ("COMMITTED | higher attempt", committed, AbortHandoff(1, "superseded"), S.ABORTING, [Abort]),
    ("OPENING | Abort", opening, ABORT, S.CLOSED, [Aborted, Closed, Unpinned]),
    ("STREAMING | Abort", streaming, ABORT, S.CLOSED, [Aborted, Closed, Unpinned]),
    ("STREAMING with frames | Abort", flying, ABORT, S.CLOSED, [Aborted, Closed]),
    ("COMMITTED | Abort", committed, ABORT, S.CLOSED, [Aborted, Closed]),
    ("ABORTING | Abort", aborting, ABORT, S.CLOSED, [Aborted, Closed, Unpinned]),
    ("ABORTING | Aborted", aborting, to_prefill(Aborted), S.CLOSED, [Closed, Unpinned]),
    ("ABORTING | Accepted", aborting, to_prefill(Accepted), S.CLOSED, [Closed, Unpinned]),
    ("CLOSED | Grant", closed, grant(), S.CLOSED, [Abort]),
    ("CLOSED | Abort", closed, ABORT, S.CLOSED, [Aborted]),
    # Not in the table: dropped.
    ("STREAMING | Grant again", streaming, grant(), S.STREAMING, []),
    ("COMMITTED | Grant again", committed, grant(), S.COMMITTED, []),
    ("ABORTING | Grant", aborting, grant(), S.ABORTING, []),
    ("STREAMING | Refused", streaming, to_prefill(Refused, reason="full"), S.STREAMING, []),
    ("COMMITTED | Refused", committed, to_prefill(Refused, reason="full"), S.COMMITTED, []),
    ("OPENING | Accepted", opening, to_prefill(Accepted), S.OPENING, []),
    ("STREAMING | Accepted", streaming, to_prefill(Accepted), S.STREAMING, []),
    ("OPENING | Aborted", opening, to_prefill(Aborted), S.OPENING, []),
    ("COMMITTED | Aborted", committed, to_prefill(Aborted), S.COMMITTED, []),
    ("CLOSED | Accepted", closed, to_prefill(Accepted), S.CLOSED, []),
    ("CLOSED | Aborted", closed, to_prefill(Aborted), S.CLOSED, []),
    # The engine has not heard yet.
    ("ABORTING | layer ready", aborting, LayerReady(1, 0, 0, 3), S.ABORTING, []),
    ("ABORTING | commit", aborting, TOKENS, S.ABORTING, []),
    ("ABORTING | Cancel", aborting, AbortHandoff(1, "cancelled"), S.ABORTING, []),
    ("CLOSED | layer ready", closed, LayerReady(1, 0, 1, 3), S.CLOSED, []),
]


@pytest.mark.parametrize(("start", "event", "state", "answer"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_row(start: Callable[[], Side], event: object, state: PrefillHandoffState, answer: list[type]) -> None:
    side = start()
    assert side.sender.state is STATES[start]
    moves = side.do(event)
    assert side.sender.state is state
    assert sent(moves) == answer


OWN = (LayerReady, AbortHandoff, type(TOKENS))  # of the own engine: ignored when late, but no strays
QUIET = [row for row in ROWS if row[3] is STATES[row[1]] and not row[4] and not isinstance(row[2], OWN)]
DROPPED = [row for row in QUIET if not (row[1] is opening and row[2] in (WAITING, CROWD))]


@pytest.mark.parametrize("row", DROPPED, ids=lambda row: row[0])
def test_dropped_is_counted(row: tuple[str, Callable[[], Side], object, PrefillHandoffState, list[type]]) -> None:
    side = row[1]()
    before = side.senders.strays
    side.do(row[2])
    assert side.senders.strays == before + 1


def test_silence_repeats_open_commit_abort() -> None:
    for start, kind in ((opening, Open), (committed, Commit), (aborting, Abort)):
        side = start()
        assert side.senders.tick(0.19) == []
        for now in (0.2, 0.4, 0.6):
            due = side.senders.next_deadline()
            assert due is not None and due == pytest.approx(now)
            (move,) = side.senders.tick(due)
            assert isinstance(move, Send) and isinstance(move.message, kind)


def test_a_repeated_open_has_less_time() -> None:
    (move,) = opening().senders.tick(1.0)
    assert isinstance(move, Send) and isinstance(move.message, Open)
    assert move.message.remaining_ms == pytest.approx(59_000)


def repetitions(side: Side, upto: float) -> list[tuple[float, type]]:
    """Lets time pass; after every repetition of an Open the peer says that the handoff waits."""
    found = []
    while (due := side.senders.next_deadline()) is not None and due < upto:
        for kind in sent(side.senders.tick(due)):
            found.append((round(due, 3), kind))
            side.do(WAITING, due)
    return found


def test_what_waits_is_repeated_without_its_tokens_and_ever_more_seldom() -> None:
    found = repetitions(opening(), 20.0)
    assert [kind for _, kind in found] == [Open] + [Remind] * (len(found) - 1)
    pauses = [round(after - before, 3) for (before, _), (after, _) in pairwise(found)]
    assert pauses == sorted(pauses) and pauses[:3] == [0.2, 0.4, 0.8]
    assert pauses[-1] == CONFIG.silence / 4, "so that the peer knows us to live"


def test_room_is_waited_for_as_long_as_the_peer_says_that_we_wait() -> None:
    side = opening()
    silent_since, _ = repetitions(side, 20.0)[-1]
    due = silent_since
    moves: list[Instruction] = []
    while sent(moves) != [Abort]:
        due = side.senders.next_deadline() or due
        moves = side.senders.tick(due)
    assert due == pytest.approx(silent_since + CONFIG.grant_deadline)


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
                link.payload_left(*turn, 0, 0.0)
                link.handle(FrameDone(number, header.number), 0.0)
                link.receive(Credit(sender=DECODE, receiver=PREFILL, seen=link.window.sent, limit=1 << 20), 0.0)

        return lines_run(send) / handoffs

    assert effort(32) < 2 * effort(8)


def test_a_line_that_is_full_is_asked_again_with_everything() -> None:
    side = opening()
    for answer, kind in ((CROWD, Open), (CROWD, Open), (WAITING, Remind), (CROWD, Open)):
        side.do(answer, 0.0)
        assert sent(side.senders.tick(side.senders.next_deadline() or 0.0)) == [kind]


def test_what_was_granted_is_repeated_as_soon_as_ever() -> None:
    side = opening()
    last, _ = repetitions(side, 10.0)[-1]
    side.do(grant(), last)
    assert side.senders.next_deadline() == pytest.approx(last + 0.2)


def test_silence_in_streaming_probes_with_the_link_offset() -> None:
    side = flying()
    (move,) = side.senders.tick(0.2)
    assert isinstance(move, Send) and isinstance(move.message, Layer)
    probe = move.message
    assert (probe.number, probe.count, probe.size, probe.offset) == (2, 0, 0, 24)


def ready(side: Side) -> Side:
    """Reports every layer as ready, in two steps, as a prompt of two chunks is computed."""
    for upto in (2, 3):
        for layer in (0, 1):
            side.do(LayerReady(1, 0, layer, upto))
    return side


def committed_in(moves: list[Instruction]) -> Commit:
    (message,) = [move.message for move in moves if isinstance(move, Send)]
    assert isinstance(message, Commit)
    return message


def test_a_grant_of_everything_commits_at_once_without_payload() -> None:
    side = ready(opening())
    side.do(TOKENS)
    message = committed_in(side.do(grant(held=3)))
    assert (message.payloads, message.size, message.digest) == (0, 0, 0)


def test_a_repeated_grant_changes_nothing() -> None:
    side = ready(opening())
    side.do(grant(held=2))
    side.do(grant(held=0))
    headers, _ = side.send_all()
    assert [(h.layer, h.first, h.count) for h in headers] == [(0, 2, 1), (1, 2, 1)]


def test_layers_leave_in_order_of_readiness_and_once() -> None:
    side = streaming()
    side.do(LayerReady(1, 0, 0, 1))
    side.do(LayerReady(1, 0, 1, 1))
    side.do(LayerReady(1, 0, 0, 3))
    side.do(LayerReady(1, 0, 0, 2))  # an old one
    headers, _ = side.send_all()
    left = [(h.number, h.layer, h.first, h.count, h.offset) for h in headers]
    assert left == [(0, 0, 0, 2, 0), (1, 0, 2, 1, 16), (2, 1, 0, 1, 24)]
    side.do(LayerReady(1, 0, 0, 3))
    assert side.send_all()[0] == []


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
    assert list(side.sender.flying.values()) == [16, 24]
    side.do(Credit(sender=DECODE, receiver=PREFILL, seen=23, limit=2000))
    assert list(side.sender.flying.values()) == [24]
    side.do(ABORT)
    assert side.do(Credit(sender=DECODE, receiver=PREFILL, seen=24, limit=2000)) == [Unpinned(1)]
    assert side.senders.handoffs == {}


def test_frames_done_end_io_references() -> None:
    side = closed()
    assert side.do(FrameDone(1, 1)) == []
    assert side.do(FrameDone(1, 0)) == [Unpinned(1)]


def test_grant_deadline_aborts() -> None:
    side = opening()
    moves = side.senders.tick(CONFIG.grant_deadline)
    assert sent(moves) == [Abort] and side.sender.state is S.ABORTING
    assert outcome(side.do(to_prefill(Aborted), 31.0)) == ("failed", "grant_deadline", True)


@pytest.mark.parametrize("start", [opening, streaming, committed], ids=lambda start: start.__name__)
def test_deadline_aborts(start: Callable[[], Side]) -> None:
    side = start()
    side.sender.opened = replace(side.sender.opened, deadline=0.1)
    assert side.senders.next_deadline() == 0.1
    assert sent(side.senders.tick(0.1)) == [Abort]
    assert side.sender.state is S.ABORTING


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
    assert side.sender.state is S.CLOSED


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


@pytest.mark.parametrize(
    ("reason", "ends"),
    [
        ("done", ("done", "done", False)),
        ("cancelled", ("failed", "cancelled", False)),
        ("superseded", ("failed", "superseded", False)),
        ("deadline", ("failed", "deadline", True)),
    ],
)
def test_outcomes_of_giving_up(reason: str, ends: tuple[str, str, bool]) -> None:
    side = streaming()
    side.do(AbortHandoff(1, reason))
    assert outcome(side.do(to_prefill(Aborted))) == ends


def test_refused_for_ever_is_not_retryable() -> None:
    side = opening()
    side.do(to_prefill(Refused, reason="misfit", retryable=False))
    assert outcome(side.do(to_prefill(Aborted))) == ("failed", "misfit", False)


def test_aborting_accepted_reports_no_failure() -> None:
    side = committed()
    side.do(AbortHandoff(1, "cancelled"))
    assert outcome(side.do(to_prefill(Accepted)))[0] == "accepted"


def test_forgotten_handoffs_still_answer() -> None:
    side = opening()
    side.do(ABORT)
    assert side.senders.handoffs == {}
    assert sent(side.do(grant())) == [Abort]
    assert sent(side.do(ABORT)) == [Aborted]
    assert side.do(to_prefill(Accepted)) == []


def test_only_a_programmer_can_do_these() -> None:
    wrong: list[tuple[Callable[[], Side], object]] = [
        (committed, LayerReady(1, 0, 0, 3)),
        (committed, TOKENS),
        (committed, AbortHandoff(1, "done")),
        (streaming, TOKENS),
        (opening, TOKENS),
        (opening, LayerReady(1, 0, 0, 4)),
        (opening, LayerReady(1, 0, 2, 1)),
        (opening, LayerReady(1, 1, 0, 1)),
    ]
    for start, event in wrong:
        with pytest.raises(IllegalMove):
            start().do(event)


@pytest.mark.parametrize(
    "branches",
    [[], [Branch(1, [7])], [Branch(0, [7]), Branch(0, [7])], [Branch(0, [])]],
    ids=["none", "of another sample", "twice", "without tokens"],
)
def test_branches_that_do_not_fit_are_a_programmers_mistake(branches: list[Branch]) -> None:
    side = ready(streaming())
    with pytest.raises(IllegalMove):
        side.senders.handle(replace(TOKENS, branches=branches), 0.0)


def test_the_open_has_salt_and_priority_and_the_commit_some_of_its_samples() -> None:
    what = opened(samples=(0, 1, 2), salt="0af9" * 8, priority=2)
    senders = PrefillLink(CONFIG, PREFILL, DECODE, SPEC)
    (move,) = senders.open(what, 0.0)
    assert isinstance(move, Send) and isinstance(move.message, Open)
    assert (move.message.samples, move.message.whole_prompt()) == ((0, 1, 2), what.job.prompt)
    senders.receive(grant(held=3), 0.0)
    branches = [Branch(2, [8]), Branch(0, [7])]
    assert committed_in(senders.handle(replace(TOKENS, branches=branches), 0.0)).branches == branches


def test_turns_alternate_between_handoffs() -> None:
    senders = PrefillLink(CONFIG, PREFILL, DECODE, SPEC)
    for number in (1, 2):
        senders.open(opened(40, handoff=number), 0.0)
        senders.receive(replace(grant(), handoff=number), 0.0)
        senders.handle(LayerReady(number, 0, 0, 10), 0.0)
    order = []
    while (turn := senders.next_payload()) is not None:
        order.append(turn[0].number)
        senders.payload_left(*turn, 0, 0.0)
    assert order == [1, 2] * 5


def test_no_more_is_under_way_than_the_channel_has_room_for() -> None:
    """Whatever the credit is, what was not read from a ring must not be overwritten."""
    side = ready(streaming())
    side.senders.use(room=24, frame=8)
    headers, _ = side.send_all()
    assert [header.offset for header in headers] == [0, 8, 16]
    side.do(Credit(sender=DECODE, receiver=PREFILL, seen=8, limit=1 << 20))
    headers, _ = side.send_all()
    assert [header.offset for header in headers] == [24]


def test_a_commit_waits_for_what_a_device_copies() -> None:
    """Whatever the peer has seen: headers of copies leave with the copies' ends."""
    side = streaming()
    for layer in range(2):
        side.do(LayerReady(1, 0, layer, 3))
    side.do(TOKENS)
    *first, last = side.copy_all()
    for number, digest in enumerate(first):
        assert side.do(FrameDone(1, number, digest)) == []
    side.do(Credit(sender=DECODE, receiver=PREFILL, seen=side.senders.window.sent, limit=1 << 20))
    (commit,) = side.do(FrameDone(1, len(first), last))
    assert isinstance(commit, Send) and isinstance(commit.message, Commit)
    assert commit.message.digest == (sum(first) + last) % (1 << 64)


def test_blocks_that_a_device_copies_stay_pinned() -> None:
    side = streaming()
    side.do(LayerReady(1, 0, 0, 3))
    *first, last = side.copy_all()
    assert Unpinned(1) not in side.do(ABORT)
    for number, digest in enumerate(first):
        assert side.do(FrameDone(1, number, digest)) == []
    assert side.do(FrameDone(1, len(first), last)) == [Unpinned(1)]
