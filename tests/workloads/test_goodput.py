"""The search for goodput, on servers that are functions of the rate."""

from collections.abc import Callable

import pytest

from contracts.slo import SLO, Timings
from workloads.goodput import MAX_DOUBLINGS, Trial, best, search
from workloads.outcome import RequestOutcome
from workloads.report import Report, make_report

REQUEST_COUNT = 400


def report(good: int, requests: int = REQUEST_COUNT, seconds: float = 1.0) -> Report:
    outcomes = [RequestOutcome(0.0, 0.0, seconds, Timings(1.0 if n < good else 9.0, 9.0, 1)) for n in range(requests)]
    return make_report(outcomes, SLO(5.0, 1.0), server="", model="", load={})


def server(capacity: float) -> Callable[[float], Trial]:
    """Every request is good up to `capacity`, half of them above it."""
    return lambda rate: Trial(rate, report(REQUEST_COUNT if rate <= capacity else REQUEST_COUNT // 2))


@pytest.mark.parametrize(
    ("capacity", "rates", "found"),
    [
        (5.0, [1, 2, 4, 8, 6, 5, 5.5], 5.0),
        (0.3, [1, 0.5, 0.25, 0.375, 0.3125, 0.28125], 0.28125),
        (1.0, [1, 2, 1.5, 1.25, 1.125], 1.0),
    ],
)
def test_doubles_or_halves_then_bisects(capacity: float, rates: list[float], found: float) -> None:
    trials = list(search(server(capacity), 1.0, bisections=3))
    assert [trial.rate for trial in trials] == rates
    highest = best(trials)
    assert highest is not None and highest.rate == found == highest.goodput


def test_a_server_that_is_never_good_has_no_goodput() -> None:
    trials = list(search(server(0.0), 1.0, bisections=3))
    assert len(trials) == 1 + MAX_DOUBLINGS and best(trials) is None


def test_lower_rates_are_not_tried_where_requests_already_come_one_by_one() -> None:
    """Each takes 9 ms: half of them are late at any rate, and from 11.1/s on fewer than 0.1 are in progress."""
    trials = list(search(lambda rate: Trial(rate, report(200, seconds=REQUEST_COUNT / rate)), 40.0, bisections=3))
    assert [trial.rate for trial in trials] == [40.0, 20.0, 10.0] and best(trials) is None


def test_a_server_that_answers_nothing_is_not_asked_for_days() -> None:
    refused = [RequestOutcome(0.0, 0.0, 1.0, error="status 429")]
    silent = make_report(refused, SLO(5.0, 1.0), server="", model="", load={})
    assert [trial.rate for trial in search(lambda rate: Trial(rate, silent), 2.0, bisections=3)] == [2.0, 1.0, 0.5]


def test_a_trial_says_whether_chance_may_have_decided() -> None:
    assert Trial(3.0, report(37, 40)).passed and not Trial(3.0, report(37, 40)).sure
    assert Trial(3.0, report(390)).sure and Trial(3.0, report(300)).sure and not Trial(3.0, report(300)).passed
    assert Trial(4.0, report(300), wanted_share=0.5).passed and Trial(4.0, report(300)).goodput == 3.0
