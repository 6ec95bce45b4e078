"""All handoffs of a decode worker: attempts that replace each other, cancelled samples, ended handoffs, strangers."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from contracts.ids import AttemptKey
from contracts.messages.handoff import Abort, Accepted, Branch, Credit, Refused
from infra.config.transfer import TransferConfig
from kvtransfer.events import BlocksWanted, Dropped, Landed
from kvtransfer.handoff import HandoffKey
from kvtransfer.protocol.decode_links import DecodeLinks
from kvtransfer.protocol.instructions import Send
from tests.kvtransfer.protocol.decode_side import (
    ABORT,
    ALL,
    COMMIT,
    GRANTED,
    LINK,
    ONE,
    S,
    Side,
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
)
from tests.kvtransfer.world import CONFIG, DECODE, KEY, PREFILL, SPEC, layer, opening


def test_while_draining_an_open_is_refused_and_a_granted_one_goes_on() -> None:
    side = landed()
    side.receivers.drain()
    assert kinds(side.do(opening(handoff=2, request="other"))) == [Refused]
    assert kinds(side.do(COMMIT)) == [Landed, Accepted]


def test_a_sample_goes_on_elsewhere_while_its_blocks_are_in_quarantine() -> None:
    side = quarantined()
    assert not side.receivers.knows(AttemptKey("r", 0, 1))
    assert kinds(side.do(opening(handoff=2))) == [BlocksWanted]
    assert side.state is S.QUARANTINED


def test_handoffs_of_a_link_that_brings_others_payloads_are_not_silent() -> None:
    """The probes of these handoffs wait in the link behind the payloads of other handoffs."""
    side = granted()
    for tenth in range(100):
        assert side.receivers.tick(tenth / 10) == []
        side.do(layer(tenth, 0, 0, 1, handoff=2, offset=8 * tenth), tenth / 10)


def test_cancel_ends_frees_and_leaves_a_tombstone() -> None:
    side = granted()
    assert kinds(side.receivers.cancel(AttemptKey("r", 0, 1), 0.0)) == [Dropped, Abort]
    assert kinds(side.do(opening(handoff=2))) == [Refused]
    assert kinds(side.do(opening(handoff=3, attempt=2))) == [BlocksWanted]


def test_cancel_before_the_open() -> None:
    side = none()
    assert side.receivers.cancel(AttemptKey("r", 0, 0), 0.0) == []
    assert kinds(side.do(opening(attempt=0))) == [Refused]


def test_cancel_of_a_lower_attempt_changes_nothing() -> None:
    side = granted()
    assert side.receivers.cancel(AttemptKey("r", 0, 0), 0.0) == []
    assert side.state is S.GRANTED


def branched() -> Side:
    """Returns a handoff that is GRANTED for three samples, with every payload in place."""
    side = none()
    side.do(opening(samples=(0, 1, 2)))
    side.do(GRANTED)
    for header in ALL:
        side.land(side.do(header))
    return side


def test_a_commit_names_the_samples_that_go_on_in_any_order() -> None:
    message = with_branches(Branch(2, [9]), Branch(0, [7]))
    moves = branched().do(message)
    assert kinds(moves) == [Landed, Accepted]
    assert isinstance(moves[0], Landed) and moves[0].commit == message


def test_one_branch_of_several_cancelled_goes_on_and_lands() -> None:
    side = branched()
    assert side.receivers.cancel(AttemptKey("r", 0, 1), 0.0) == []
    message = with_branches(ONE, Branch(1, [8]))
    moves = side.do(message)
    assert kinds(moves) == [Landed, Accepted]
    assert isinstance(moves[0], Landed) and moves[0].commit == message, "the Commit whole"


@pytest.mark.parametrize("start", [branched, none], ids=["granted", "waiting"])
def test_all_branches_cancelled_end_it(start: Callable[[], Side]) -> None:
    side = start()
    side.do(opening(samples=(0, 1, 2)))
    assert side.receivers.cancel(AttemptKey("r", 2, 1), 0.0) == []
    assert side.receivers.cancel(AttemptKey("r", 0, 1), 0.0) == []
    assert kinds(side.receivers.cancel(AttemptKey("r", 1, 1), 0.0)) == [Dropped, Abort]


def test_all_branches_cancelled_end_an_owned_one() -> None:
    side = branched()
    side.do(with_branches(ONE, Branch(1, [8]), Branch(2, [9])))
    assert [side.receivers.cancel(AttemptKey("r", sample, 1), 0.0) for sample in (0, 1)] == [[], []]
    assert side.receivers.cancel(AttemptKey("r", 2, 1), 0.0) == [Dropped(KEY, "cancelled", True)]


def test_an_open_goes_on_for_the_samples_that_were_not_cancelled() -> None:
    side = none()
    side.receivers.cancel(AttemptKey("r", 0, 1), 0.0)
    message = opening(samples=(0, 1))
    assert side.do(message) == [BlocksWanted(KEY, message, (1,))], "the Open whole, and who lives"
    assert kinds(side.receivers.cancel(AttemptKey("r", 1, 1), 0.0)) == [Dropped, Abort]


def test_a_retry_of_one_sample_leaves_the_others_alone() -> None:
    side = branched()
    assert kinds(side.do(opening(handoff=2, attempt=2, samples=(1,)))) == [BlocksWanted]
    assert side.state is S.GRANTED
    moves = side.do(opening(handoff=3, attempt=2, samples=(0, 2)))
    assert moves[0] == Dropped(KEY, "superseded") and kinds(moves) == [Dropped, Abort, BlocksWanted]


def test_an_open_that_a_retry_of_one_sample_has_overtaken_is_for_the_others() -> None:
    side = none()
    side.do(opening(handoff=2, attempt=2, samples=(1,)))
    message = opening(samples=(0, 1))
    assert side.do(message) == [BlocksWanted(KEY, message, (0,))]
    assert kinds(side.receivers.cancel(AttemptKey("r", 0, 1), 0.0)) == [Dropped, Abort], "nobody else wants it"
    assert side.receivers.cancel(AttemptKey("r", 1, 2), 0.0)[0] == Dropped(HandoffKey(PREFILL, 2), "cancelled")


@pytest.mark.parametrize("start", [waiting, granted, verifying], ids=lambda start: start.__name__)
def test_higher_attempt_kills_lower(start: Callable[[], Side]) -> None:
    moves = start().do(opening(handoff=2, attempt=2, sender="prefill-2"))
    assert kinds(moves) == [Dropped, Abort, BlocksWanted]
    assert moves[0] == Dropped(KEY, "superseded")


def test_higher_attempt_takes_an_owned_sequence_away() -> None:
    moves = owned().do(opening(handoff=2, attempt=2, sender="prefill-2"))
    assert moves[0] == Dropped(KEY, "superseded", True) and kinds(moves) == [Dropped, BlocksWanted]


def test_lower_attempt_is_refused_when_a_higher_was_seen() -> None:
    side = none()
    side.do(opening(attempt=2))
    (move,) = side.do(opening(handoff=2, attempt=1))
    assert isinstance(move, Send) and isinstance(move.message, Refused) and not move.message.retryable


def test_the_same_attempt_twice_is_refused() -> None:
    assert kinds(granted().do(opening(handoff=2))) == [Refused]


def test_unknown_layers_are_aborted_once_but_probes_always() -> None:
    side = none()
    assert kinds(side.do(ALL[0])) == [Abort]
    assert side.do(ALL[1]) == []
    assert kinds(side.do(layer(2, 0, 0, 0))) == [Abort]
    assert side.receivers.strays == 3


def test_layers_behind_our_abort_are_dropped_without_another() -> None:
    side = granted()
    assert kinds(side.do(ALL[1])) == [Dropped, Abort]  # a gap
    assert side.do(ALL[2]) == []


def test_an_open_behind_its_abort_is_refused() -> None:
    side = none()
    side.do(ABORT)
    assert kinds(side.do(opening())) == [Refused]


def test_lost_bytes_are_credited() -> None:
    side = granted()
    side.do(ALL[2])
    (move,) = side.receivers.credits()
    assert isinstance(move.message, Credit) and move.message.seen == 40
    assert side.receivers.credits() == []


def test_an_offset_beyond_all_sense_is_not_credited() -> None:
    side = granted()
    side.do(layer(5, 0, 0, 1, offset=2**63))
    assert side.receivers.credits() == []


def test_old_layers_are_counted() -> None:
    side = landed()
    side.do(ALL[0])
    assert side.receivers.strays == 1


def test_what_is_over_is_forgotten_in_time() -> None:
    side = ended_once_owned()
    assert kinds(side.do(COMMIT, CONFIG.remember - 1)) == [Accepted]
    side.receivers.tick(CONFIG.remember)
    assert kinds(side.do(COMMIT, CONFIG.remember)) == [Abort]


def test_memory_of_the_ended_is_bounded() -> None:
    receivers = DecodeLinks(TransferConfig(), DECODE, SPEC)
    for number in range(70_000):
        receivers.receive(LINK, to_decode_numbered(number), 0, 0.0)
    assert len(receivers._ended) == 65_536


def to_decode_numbered(number: int) -> Abort:
    return Abort(sender=PREFILL, receiver=DECODE, handoff=number, reason="x")


def test_an_earlier_lifes_commit_is_answered_with_our_epoch() -> None:
    (move,) = none().do(replace(COMMIT, receiver="decode-0"))
    assert isinstance(move, Send) and isinstance(move.message, Abort) and move.message.sender == DECODE


def test_keys_of_different_senders_are_different() -> None:
    side = granted()
    assert kinds(side.do(replace(COMMIT, sender="prefill-2"))) == [Abort]
    assert side.state is S.GRANTED and HandoffKey("prefill-2", 1) not in side.receivers.handoffs


def test_another_link_cannot_touch_a_handoff() -> None:
    side = granted()
    for message in (ABORT, opening(), COMMIT):
        assert side.receivers.receive(b"other", message, 0, 0.0) == []
    assert side.state is S.GRANTED and side.receivers.strays == 3
