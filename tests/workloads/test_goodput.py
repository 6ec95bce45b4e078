"""The search for goodput, on servers that are functions of the rate."""

from collections.abc import Callable

import pytest

from contracts.slo import SLO, Timings
from workloads.goodput import MAX_DOUBLINGS, Trial, best, search
from workloads.outcome import RequestOutcome
from workloads.report import Report, make_report

REQUESTS = 400


def report(good: int, requests: int = REQUESTS) -> Report:
    outcomes = [RequestOutcome(0.0, 0.0, 1.0, Timings(1.0 if n < good else 9.0, 9.0, 1)) for n in range(requests)]
    return make_report(outcomes, SLO(5.0, 1.0), server="", model="", load={})


def server(capacity: float) -> Callable[[float], Trial]:
    """Every request is good up to `capacity`, half of them above it."""
    return lambda rate: Trial(rate, report(REQUESTS if rate <= capacity else REQUESTS // 2))


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


def test_a_trial_says_whether_chance_may_have_decided() -> None:
    assert Trial(3.0, report(37, 40)).passed and not Trial(3.0, report(37, 40)).sure
    assert Trial(3.0, report(390)).sure and Trial(3.0, report(300)).sure and not Trial(3.0, report(300)).passed
    assert Trial(4.0, report(300), wanted_share=0.5).passed and Trial(4.0, report(300)).goodput == 3.0
