"""Tests every row of the sender's table, by its name."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from contracts.errors import IllegalMove
from contracts.messages.handoff import Abort, Aborted, Accepted, Branch, Commit, Credit, Layer, Open, Refused, Remind
from kvtransfer.events import AbortHandoff, Closed, LayerReady, Unpinned
from kvtransfer.protocol.instructions import Instruction, Send
from kvtransfer.protocol.prefill_events import FrameDone
from kvtransfer.protocol.prefill_handoff import PrefillHandoffState
from kvtransfer.protocol.prefill_link import PrefillLink
from tests.kvtransfer.protocol.prefill_side import (
    ABORT,
    CROWD,
    WAITING,
    Side,
    aborting,
    closed,
    committed,
    committed_in,
    flying,
    opening,
    outcome,
    ready,
    sent,
    streaming,
)
from tests.kvtransfer.world import CONFIG, DECODE, PREFILL, SPEC, TOKENS, grant, opened, to_prefill

S = PrefillHandoffState
STATES: dict[Callable[[], Side], PrefillHandoffState] = {
    opening: S.OPENING,
    streaming: S.STREAMING,
    flying: S.STREAMING,
    committed: S.COMMITTED,
    aborting: S.ABORTING,
    closed: S.CLOSED,
}


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
    prompt = move.message.whole_prompt()
    assert move.message.samples == (0, 1, 2)
    assert replace(prompt, token_ids=list(prompt.token_ids)) == what.job.prompt
    senders.receive(grant(held=3), 0.0)
    branches = [Branch(2, [8]), Branch(0, [7])]
    assert committed_in(senders.handle(replace(TOKENS, branches=branches), 0.0)).branches == branches


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
