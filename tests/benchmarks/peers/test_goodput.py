"""The search for goodput, on servers that are functions of the rate."""

from collections.abc import Callable

import pytest

from benchmarks.load import Result
from benchmarks.peers.goodput import MAX_DOUBLINGS, Trial, best, search, trial_of
from contracts.slo import SLO, Timings


def server(capacity: float) -> Callable[[float], Trial]:
    """Every request is good up to `capacity`, half of them above it."""
    return lambda rate: Trial(rate, 1.0 if rate <= capacity else 0.5, (0.0, 0.0), (0.0, 0.0), 0)


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


def test_a_trial_counts_what_failed() -> None:
    results = [Result(Timings(100.0 * (i + 1), 100.0 * (i + 1) + 50.0 * 10, 11), "", 1.0) for i in range(8)]
    results.append(Result(Timings(100.0, 100.0 + 101.0 * 10, 11), "", 1.0))  # TPOT over the limit
    results.append(Result(None, "status 500", 1.0))
    trial = trial_of(3.0, results, SLO(700.0, 100.0))
    assert trial == Trial(3.0, 0.7, (400.0, 800.0), (50.0, 101.0), 1) and not trial.passed
    assert trial.goodput == pytest.approx(2.1)
