"""Tests every row of the receiver's table, by its name."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from contracts.errors import IllegalMove
from contracts.messages.handoff import Abort, Aborted, Accepted, Branch, Credit, Grant, Refused, Remind, Waiting
from contracts.messages.job import Prompt
from contracts.messages.wire import VERSION
from kvtransfer.events import BlocksGranted, BlocksRefused, BlocksWanted, Dropped, HandoffOver, Landed
from kvtransfer.protocol.decode_events import WriterCame, WriterGone
from kvtransfer.protocol.decode_handoff import ABORTS_PER_SILENCE, DecodeHandoffState
from kvtransfer.protocol.instructions import Land, Send
from tests.kvtransfer.protocol.decode_side import (
    ABORT,
    ALL,
    COMMIT,
    DIGEST,
    GRANTED,
    LINK,
    ONE,
    QUICK,
    S,
    Side,
    ended,
    ended_once_owned,
    granted,
    kinds,
    landed,
    none,
    owned,
    quarantined,
    verifying,
    waiting,
    with_branches,
    written,
)
from tests.kvtransfer.world import CONFIG, KEY, commit, layer, opening, prompt, to_decode

REMIND = to_decode(Remind)
SALTED = opening(prompt=prompt(10, "0af9" * 8, -3))


STATES: dict[Callable[[], Side], DecodeHandoffState] = {
    none: S.NONE,
    waiting: S.WAITING,
    granted: S.GRANTED,
    written: S.GRANTED,
    quarantined: S.QUARANTINED,
    landed: S.GRANTED,
    verifying: S.VERIFYING,
    owned: S.OWNED,
    ended: S.NONE,
    ended_once_owned: S.NONE,
}


ROWS: list[tuple[str, Callable[[], Side], object, DecodeHandoffState, list[type]]] = [
    ("NONE | Open of another epoch", none, opening(receiver="decode-0"), S.NONE, [Refused]),
    ("NONE | Open misfit", none, opening(fingerprint="other"), S.NONE, [Refused]),
    ("NONE | Open of another version", none, opening(version=VERSION + 1), S.NONE, [Refused]),
    ("NONE | Open with a salt and a priority", none, SALTED, S.WAITING, [BlocksWanted]),
    ("ENDED | Open", ended, opening(), S.NONE, [Refused]),
    ("NONE | Open", none, opening(), S.WAITING, [BlocksWanted]),
    ("WAITING | Open again", waiting, opening(), S.WAITING, [Waiting]),
    ("WAITING | Remind", waiting, REMIND, S.WAITING, [Waiting]),
    ("GRANTED | Remind", granted, REMIND, S.GRANTED, [Grant]),
    ("VERIFYING | Remind", verifying, REMIND, S.VERIFYING, []),
    ("OWNED | Remind", owned, REMIND, S.OWNED, []),
    ("NONE | Remind of another epoch", none, replace(REMIND, receiver="decode-0"), S.NONE, [Refused]),
    ("ENDED | Remind", ended, REMIND, S.NONE, [Abort]),
    ("ENDED, once OWNED | Remind", ended_once_owned, REMIND, S.NONE, []),
    ("unknown | Remind", none, REMIND, S.NONE, [Abort]),
    ("WAITING | its turn", waiting, GRANTED, S.GRANTED, [Grant]),
    ("WAITING | declined", waiting, BlocksRefused(KEY, "full", "no room", True), S.NONE, [Refused]),
    ("GRANTED | Open", granted, opening(), S.GRANTED, [Grant]),
    ("GRANTED | next Layer", granted, ALL[0], S.GRANTED, [Land]),
    ("GRANTED | old Layer", landed, ALL[0], S.GRANTED, []),
    ("GRANTED | probe", granted, layer(0, 0, 0, 0), S.GRANTED, []),
    ("GRANTED | gap", granted, ALL[1], S.NONE, [Dropped, Abort]),
    ("GRANTED | gap seen by a probe", granted, layer(1, 0, 0, 0), S.NONE, [Dropped, Abort]),
    ("GRANTED | frame of no group", granted, layer(0, 0, 0, 1, group=1), S.NONE, [Dropped, Abort]),
    ("GRANTED | frame of a negative group", granted, layer(0, 0, 0, 1, group=-1), S.NONE, [Dropped, Abort]),
    ("GRANTED | frame of no layer", granted, layer(0, 2, 0, 1), S.NONE, [Dropped, Abort]),
    ("GRANTED | frame past the end", granted, layer(0, 0, 0, 4), S.NONE, [Dropped, Abort]),
    ("GRANTED | frame that leaves a hole", granted, layer(0, 0, 1, 1), S.NONE, [Dropped, Abort]),
    ("GRANTED | frame of another size", granted, layer(0, 0, 0, 2, size=8), S.NONE, [Dropped, Abort]),
    ("GRANTED | frame of half a block", granted, layer(0, 0, 0, 1, size=4), S.NONE, [Dropped, Abort]),
    ("GRANTED | frame of fewer than no blocks", granted, layer(0, 0, 0, -1), S.NONE, [Dropped, Abort]),
    ("GRANTED | Commit, all landed", landed, COMMIT, S.OWNED, [Landed, Accepted]),
    ("GRANTED | Commit, one missing", granted, COMMIT, S.VERIFYING, []),
    ("GRANTED | Commit, bad digest", landed, commit(4, 48, DIGEST ^ 1), S.NONE, [Dropped, Abort]),
    ("GRANTED | Commit, bad size", landed, commit(4, 47, DIGEST), S.NONE, [Dropped, Abort]),
    ("GRANTED | Commit of fewer payloads", landed, commit(3, 48, DIGEST), S.NONE, [Dropped, Abort]),
    ("GRANTED | Commit of nothing", granted, commit(0, 0, 0), S.NONE, [Dropped, Abort]),
    ("GRANTED | Commit without branches", landed, with_branches(), S.NONE, [Dropped, Abort]),
    ("GRANTED | Commit of another sample", landed, with_branches(Branch(1, [7])), S.NONE, [Dropped, Abort]),
    ("GRANTED | Commit of a sample twice", landed, with_branches(ONE, ONE), S.NONE, [Dropped, Abort]),
    ("GRANTED | Commit of a branch without tokens", landed, with_branches(Branch(0, [])), S.NONE, [Dropped, Abort]),
    ("GRANTED | declined after all", granted, BlocksRefused(KEY, "draining", "", True), S.NONE, [Dropped, Abort]),
    ("VERIFYING | declined after all", verifying, BlocksRefused(KEY, "draining", "", True), S.NONE, [Dropped, Abort]),
    ("VERIFYING | Commit again", verifying, COMMIT, S.VERIFYING, []),
    ("VERIFYING | the last Layer", verifying, ALL[3], S.VERIFYING, [Land]),
    ("VERIFYING | gap", verifying, replace(ALL[3], number=4), S.NONE, [Dropped, Abort]),
    ("WAITING | Abort", waiting, ABORT, S.NONE, [Aborted, Dropped]),
    ("GRANTED | Abort", granted, ABORT, S.NONE, [Aborted, Dropped]),
    ("VERIFYING | Abort", verifying, ABORT, S.NONE, [Aborted, Dropped]),
    ("WAITING | Cancel", waiting, HandoffOver(KEY, "cancelled"), S.NONE, [Dropped, Abort]),
    ("GRANTED | Cancel", granted, HandoffOver(KEY, "cancelled"), S.NONE, [Dropped, Abort]),
    ("VERIFYING | Cancel", verifying, HandoffOver(KEY, "cancelled"), S.NONE, [Dropped, Abort]),
    ("WAITING | Layer", waiting, ALL[0], S.NONE, [Dropped, Abort]),
    ("WAITING | Commit", waiting, COMMIT, S.NONE, [Dropped, Abort]),
    ("OWNED | Commit", owned, COMMIT, S.OWNED, [Accepted]),
    ("OWNED | Abort", owned, ABORT, S.OWNED, [Accepted]),
    ("OWNED | Cancel", owned, HandoffOver(KEY, "cancelled"), S.NONE, [Dropped]),
    ("OWNED | end", owned, HandoffOver(KEY, "finished"), S.NONE, []),
    ("OWNED | Open again", owned, opening(), S.OWNED, []),
    ("OWNED | Layer again", owned, ALL[0], S.OWNED, []),
    ("ENDED | Commit", ended, COMMIT, S.NONE, [Abort]),
    ("ENDED, once OWNED | Commit", ended_once_owned, COMMIT, S.NONE, [Accepted]),
    ("ENDED, once OWNED | Abort", ended_once_owned, ABORT, S.NONE, [Accepted]),
    ("ENDED, once OWNED | Open", ended_once_owned, opening(), S.NONE, []),
    ("ENDED, once OWNED | Layer", ended_once_owned, ALL[0], S.NONE, []),
    ("ENDED | Abort", ended, ABORT, S.NONE, [Aborted]),
    ("ENDED | Aborted", ended, to_decode(Aborted), S.NONE, []),
    ("ENDED | Layer", ended, ALL[0], S.NONE, [Abort]),
    ("ENDED | granted too late", ended, GRANTED, S.NONE, []),
    ("WAITING | writer comes", waiting, WriterCame(), S.WAITING, []),
    ("GRANTED | writer comes", granted, WriterCame(), S.GRANTED, [Grant]),
    ("GRANTED, written | probe before the first Layer", written, layer(0, 0, 0, 0), S.GRANTED, [Grant]),
    ("GRANTED, written | Cancel", written, HandoffOver(KEY, "cancelled"), S.QUARANTINED, [Abort]),
    ("GRANTED, written | gap", written, ALL[1], S.QUARANTINED, [Abort]),
    ("GRANTED, written | Abort", written, ABORT, S.NONE, [Aborted, Dropped]),
    ("GRANTED, written | writer gone", written, WriterGone(), S.GRANTED, []),
    ("QUARANTINED | Aborted", quarantined, to_decode(Aborted), S.NONE, [Dropped]),
    ("QUARANTINED | Abort", quarantined, ABORT, S.NONE, [Aborted, Dropped]),
    ("QUARANTINED | Commit", quarantined, COMMIT, S.NONE, [Dropped]),
    ("QUARANTINED | writer gone", quarantined, WriterGone(), S.NONE, [Dropped]),
    ("QUARANTINED | Layer", quarantined, ALL[0], S.QUARANTINED, []),
    ("QUARANTINED | Open", quarantined, opening(), S.QUARANTINED, []),
    ("QUARANTINED | Cancel", quarantined, HandoffOver(KEY, "cancelled"), S.QUARANTINED, []),
    ("unknown | Commit", none, COMMIT, S.NONE, [Abort]),
    ("unknown | Abort", none, ABORT, S.NONE, [Aborted]),
    ("unknown | Layer", none, ALL[0], S.NONE, [Abort]),
]


@pytest.mark.parametrize(("start", "event", "state", "answer"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_row(start: Callable[[], Side], event: object, state: DecodeHandoffState, answer: list[type]) -> None:
    side = start()
    assert side.state is STATES[start]
    moves = side.do(event)
    assert side.state is state
    assert kinds(moves) == answer
    assert all(move.link == LINK for move in moves if isinstance(move, Send))


def test_only_a_writer_is_told_the_blocks() -> None:
    for start, blocks in ((waiting, ()), (written, ([4, 5, 6],))):
        side = start()
        (move,) = side.do(opening() if start is written else GRANTED)
        assert isinstance(move, Send) and isinstance(move.message, Grant) and move.message.blocks == blocks


def test_a_silent_writers_blocks_stay_in_quarantine_and_it_is_told_again() -> None:
    side, pause = written(), QUICK.silence / ABORTS_PER_SILENCE
    assert kinds(side.receivers.tick(0.0)) == []
    for at in range(1, 5):
        assert kinds(side.receivers.tick(at * pause)) == ([] if at < 4 else [Abort])
    assert side.state is S.QUARANTINED
    assert kinds(side.receivers.tick(4 * pause)) == []
    for at in range(5, 40):
        assert kinds(side.receivers.tick(at * pause)) == [Abort]
    assert side.state is S.QUARANTINED and kinds(side.do(WriterGone())) == [Dropped]


def test_a_payload_that_lands_after_the_end_is_ignored() -> None:
    side = granted()
    moves = side.do(ALL[0])
    side.do(ABORT)
    assert side.land(moves) == []


def test_verifying_ends_when_no_payload_has_come_for_long() -> None:
    side = verifying()
    assert side.receivers.next_deadline() == QUICK.verify_deadline
    assert side.receivers.tick(0.99) == []
    assert kinds(side.receivers.tick(1.0)) == [Dropped, Abort]


def test_a_commit_waits_for_the_payloads_that_it_has_overtaken() -> None:
    """It waits as long as the link brings any payload, its own or another handoff's."""
    side = granted()
    side.do(COMMIT)
    side.land(side.do(ALL[0], 0.9))
    assert side.receivers.tick(1.1) == [] and side.state is S.VERIFYING
    side.do(layer(0, 0, 0, 0, handoff=2, offset=24), 1.9)  # another handoff's probe
    assert side.receivers.tick(2.2) == [] and side.state is S.VERIFYING
    for header in ALL[1:]:
        moves = side.land(side.do(header, 2.3))
    assert kinds(moves) == [Landed, Accepted]


def test_what_is_missing_when_the_link_is_past_its_last_payload_never_comes() -> None:
    side = granted()
    side.do(commit(4, 48, DIGEST, offset=48))
    for header in ALL[:3]:
        side.land(side.do(header))
    side.do(layer(0, 0, 0, 1, handoff=2, offset=48))  # another handoff's, behind ours
    assert kinds(side.receivers.tick(0.1)) == [Dropped, Abort]


@pytest.mark.parametrize("start", [waiting, granted], ids=lambda start: start.__name__)
def test_a_silent_sender_is_dead(start: Callable[[], Side]) -> None:
    side = start()
    for tenth in range(50):
        assert side.receivers.tick(tenth / 10) == []
    assert kinds(side.receivers.tick(5.0)) == [Dropped, Abort]


@pytest.mark.parametrize("start", [waiting, granted], ids=lambda start: start.__name__)
def test_a_pause_of_the_receivers_own_is_not_the_senders_silence(start: Callable[[], Side]) -> None:
    """A worker that was suspended has messages of its senders to read, and counts their silence from then on."""
    side = start()
    side.receivers.tick(0.0)
    paused = 10 * QUICK.silence
    assert side.receivers.tick(paused) == []
    for tenth in range(1, 50):
        assert side.receivers.tick(paused + tenth / 10) == []
    assert kinds(side.receivers.tick(paused + QUICK.silence)) == [Dropped, Abort]


@pytest.mark.parametrize("message", [opening(), REMIND], ids=["Open", "Remind"])
def test_an_open_repeated_keeps_a_waiting_handoff(message: object) -> None:
    side = waiting()
    for tenth in range(100):
        side.receivers.tick(tenth / 10)
        side.do(message, tenth / 10)
    assert side.state is S.WAITING


def test_a_probe_keeps_a_granted_handoff_and_is_credited() -> None:
    side = granted()
    for tenth in range(100):
        side.receivers.tick(tenth / 10)
        side.do(layer(0, 0, 0, 0, offset=5), tenth / 10)
        (move,) = side.receivers.credits()
        assert isinstance(move.message, Credit)
        assert (move.message.seen, move.message.limit) == (5, 5 + CONFIG.window)
    assert side.state is S.GRANTED


@pytest.mark.parametrize("start", [waiting, granted, verifying], ids=lambda start: start.__name__)
def test_deadline_ends(start: Callable[[], Side]) -> None:
    side = start()
    side.receivers.handoffs[KEY].deadline = 0.5
    assert kinds(side.receivers.tick(0.5)) == [Dropped, Abort]


def test_owned_outlives_its_sender() -> None:
    side = owned()
    for tenth in range(100):
        assert side.receivers.tick(tenth / 10) == []
    assert side.state is S.OWNED
    assert kinds(side.do(COMMIT)) == [Accepted]


@pytest.mark.parametrize(
    "bad",
    [
        {"samples": ()},
        {"samples": (0, 0)},
        {"prompt": Prompt([], 0)},
        {"remaining_ms": float("inf")},
        {"remaining_ms": float("nan")},
        {"prompt": prompt(salt="a" * 31)},
        {"prompt": prompt(salt="a" * 33)},
        {"prompt": prompt(salt="A" * 32)},
        {"prompt": prompt(salt="g" * 32)},
        {"prompt": prompt(salt="a" * 32 + "\n")},
        {"prompt": replace(prompt(), adapter="sql")},
    ],
    ids=repr,
)
def test_a_bad_open_is_refused_for_ever(bad: dict[str, Any]) -> None:
    (move,) = none().do(opening(**bad))
    assert isinstance(move, Send) and isinstance(move.message, Refused)
    assert (move.message.reason, move.message.retryable) == ("bad_open", False)


@pytest.mark.parametrize("bad", [{"ids": b"abc"}, {"ids": b""}, {"prompt": prompt()}], ids=repr)
def test_an_open_whose_ids_are_not_packed_is_refused_for_ever(bad: dict[str, Any]) -> None:
    (move,) = none().do(replace(opening(), **bad))
    assert isinstance(move, Send) and isinstance(move.message, Refused)
    assert (move.message.reason, move.message.retryable) == ("bad_open", False)


def test_a_bad_commit_ends_with_its_reason() -> None:
    moves = landed().do(with_branches())
    assert moves[0] == Dropped(KEY, "bad_commit")
    assert isinstance(moves[1], Send) and isinstance(moves[1].message, Abort)
    assert moves[1].message.reason == "bad_commit"


def test_a_grant_that_does_not_fit_is_a_programmers_mistake() -> None:
    for wrong in (
        BlocksGranted(KEY, ([4, 5],), (0,)),
        BlocksGranted(KEY, (), (0,)),
        BlocksGranted(KEY, ([4, 5, 6],), (4,)),
        BlocksGranted(KEY, ([4, 5, 6],), (-1,)),
    ):
        with pytest.raises(IllegalMove):
            waiting().do(wrong)
    with pytest.raises(IllegalMove):
        granted().do(GRANTED)


def test_a_grant_may_have_room_for_more() -> None:
    side = waiting()
    side.do(BlocksGranted(KEY, ([4, 5, 6, 7],), (0,)))
    (move,) = side.do(ALL[0])
    assert isinstance(move, Land) and move.blocks == [4, 5]


@pytest.mark.parametrize(("held", "first"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2)])
def test_held_blocks_are_never_landed_into(held: int, first: int) -> None:
    side = waiting()
    side.do(BlocksGranted(KEY, ([4, 5, 6],), (held,)))
    moves = side.do(layer(0, 0, first, 1))
    assert kinds(moves) == [Dropped, Abort] and moves[0] == Dropped(KEY, "bad_frame")


def test_a_commit_that_counts_held_blocks_is_refused() -> None:
    side = waiting()
    side.do(BlocksGranted(KEY, ([4, 5, 6],), (3,)))
    assert side.do(commit(0, 48, DIGEST))[0] == Dropped(KEY, "incomplete")


def test_payloads_that_a_device_digests_are_waited_for() -> None:
    """Though everything has arrived: their digests come behind Commit, or not in time."""
    side = granted()
    for header in ALL[:-1]:
        side.land(side.do(header))
    last = side.do(ALL[-1])
    assert side.do(COMMIT) == [] == side.receivers.tick(0.1)
    accepted, message = side.land(last)
    assert isinstance(accepted, Landed) and side.state is S.OWNED and isinstance(message, Send)
