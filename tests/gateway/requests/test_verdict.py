"""Shows what becomes of a request, by what is expected of it and by what is wanted."""

import pytest

from contracts.slo import NO_OBJECTIVE, Objective
from gateway.requests.verdict import (
    LEARNING_PAUSE_S,
    MAX_PAUSE_S,
    MAX_WAIT_S,
    MIN_PAUSE_S,
    EntryDecision,
    Expected,
    judge,
)

TTFT, TPOT = Objective(ttft_ms=2000.0), Objective(tpot_ms=100.0)
BOTH = Objective(2000.0, 100.0)
G, W, R = EntryDecision.GOES, EntryDecision.WAITS, EntryDecision.REFUSED


@pytest.mark.parametrize(
    "ttft, tpot, wanted, waited, others, answer",
    [
        pytest.param(None, None, BOTH, 0.0, 0.05, G, id="nobody knows: it goes"),
        pytest.param(99.0, 9.0, NO_OBJECTIVE, 500.0, None, G, id="nothing is wanted"),
        pytest.param(1.0, 0.05, BOTH, 0.0, None, G, id="both are kept"),
        pytest.param(1.7, 0.05, TTFT, 0.0, None, R, id="not with enough to spare"),
        pytest.param(1.0, 0.05, TTFT, 1.0, None, R, id="what it has waited counts"),
        pytest.param(0.1, 0.09, TPOT, 0.0, None, W, id="tokens would come too slowly"),
        pytest.param(0.1, 0.09, BOTH, 1.0, None, W, id="and a later moment may be better"),
        pytest.param(0.1, 0.09, BOTH, 1.95, None, R, id="as long as its first token may wait"),
        pytest.param(0.1, 0.06, NO_OBJECTIVE, 0.0, 0.05, W, id="others would be slowed down"),
        pytest.param(0.1, 0.04, NO_OBJECTIVE, 0.0, 0.05, G, id="others have enough"),
    ],
)
def test_what_becomes_of_a_request(
    ttft: float | None,
    tpot: float | None,
    wanted: Objective,
    waited: float,
    others: float | None,
    answer: EntryDecision,
) -> None:
    verdict = judge(Expected(ttft, tpot, sure=1.2), wanted, waited, others)
    assert verdict.answer is answer
    assert bool(verdict.why) == (answer is not G)
    assert (verdict.retry_after > 0) == (answer is R)


def test_a_refusal_says_both_figures_and_when_to_come_back() -> None:
    verdict = judge(Expected(5.0, sure=1.2), TTFT, 0.0)
    assert "5.00 s" in verdict.why and "within 2 s" in verdict.why
    assert verdict.retry_after == pytest.approx(1.2 * 5 - 2)
    assert judge(Expected(500.0), TTFT, 0.0).retry_after == MAX_PAUSE_S
    assert judge(Expected(2.001), TTFT, 0.0).retry_after == MIN_PAUSE_S


def test_a_request_that_has_waited_for_its_tokens_hears_that_these_were_the_cause() -> None:
    late = Expected(0.1, 0.15)
    assert judge(late, BOTH, 1.0).answer is W
    verdict = judge(late, BOTH, 1.95)
    assert verdict.answer is R
    assert "every 150 ms, and wanted every 100 ms" in verdict.why and "1.95 s of waiting" in verdict.why
    verdict = judge(Expected(3.0, 0.15), BOTH, 0.0)
    assert verdict.answer is R and "first token is expected in 3.00 s" in verdict.why, "this would be late in any case"


@pytest.mark.parametrize(
    "expected, wanted, answer",
    [
        pytest.param(Expected(0.1, 0.002, fastest=0.002), Objective(tpot_ms=1.0), R, id="no step was ever so fast"),
        pytest.param(Expected(0.1, None, fastest=0.002), Objective(tpot_ms=1.0), R, id="also where no more is known"),
        pytest.param(Expected(0.1, 0.05), Objective(tpot_ms=1.0), W, id="no step was seen, and others run"),
        pytest.param(Expected(0.1, None, alone=True), Objective(tpot_ms=1.0), G, id="nothing is known of an idle one"),
        pytest.param(Expected(0.1, 0.05, 0.002, True), Objective(tpot_ms=20.0), R, id="waiting changes nothing"),
        pytest.param(Expected(0.1, 0.019, 0.002, True), Objective(tpot_ms=20.0), G, id="no moment would be better"),
        pytest.param(Expected(0.1, 0.019, 0.002), Objective(tpot_ms=20.0), W, id="others leave too little to spare"),
    ],
)
def test_what_no_later_moment_can_keep_is_refused_at_once(
    expected: Expected, wanted: Objective, answer: EntryDecision
) -> None:
    verdict = judge(expected, wanted, 0.0)
    assert verdict.answer is answer
    if answer is R:
        assert f"{wanted.tpot_ms:g} ms" in verdict.why and verdict.retry_after == LEARNING_PAUSE_S


def test_no_request_waits_for_ever_for_a_better_moment() -> None:
    busy = Expected(0.1, 0.09)
    assert judge(busy, TPOT, MAX_WAIT_S - 1).answer is W
    assert judge(busy, TPOT, MAX_WAIT_S + 1).answer is R, "it would not have what it asks for"
    assert judge(busy, NO_OBJECTIVE, MAX_WAIT_S - 1, 0.05).answer is W
    assert judge(busy, NO_OBJECTIVE, MAX_WAIT_S + 1, 0.05).answer is G, "it has asked for nothing, and had to wait"


def test_no_request_waits_beyond_its_first_tokens_limit_where_that_time_is_not_known() -> None:
    busy = Expected(None, 0.09)
    assert judge(busy, BOTH, 1.0).answer is W
    verdict = judge(busy, BOTH, 2.1)
    assert verdict.answer is R and "2.10 s of waiting" in verdict.why
    assert judge(Expected(None, 0.05), BOTH, 2.1).answer is G, "nothing says that it is too late"
