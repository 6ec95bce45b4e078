"""Shows what becomes of a request, by what is expected of it and by what is wanted."""

import pytest

from core.slo import NO_OBJECTIVE, Objective
from gateway.requests.verdict import LEAST_PAUSE, MOST_PAUSE, Answer, judge

TTFT, TPOT = Objective(ttft_ms=2000.0), Objective(tpot_ms=100.0)
BOTH = Objective(2000.0, 100.0)
G, W, R = Answer.GOES, Answer.WAITS, Answer.REFUSED


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
    ttft: float | None, tpot: float | None, wanted: Objective, waited: float, others: float | None, answer: Answer
) -> None:
    verdict = judge(ttft, tpot, wanted, waited, others, 1.2)
    assert verdict.answer is answer
    assert bool(verdict.why) == (answer is not G)
    assert (verdict.retry_after > 0) == (answer is R)


def test_a_refusal_says_both_figures_and_when_to_come_back() -> None:
    verdict = judge(5.0, None, TTFT, 0.0, None, 1.2)
    assert "5.00 s" in verdict.why and "within 2 s" in verdict.why
    assert verdict.retry_after == pytest.approx(1.2 * 5 - 2)
    assert judge(500.0, None, TTFT, 0.0).retry_after == MOST_PAUSE
    assert judge(2.001, None, TTFT, 0.0).retry_after == LEAST_PAUSE
