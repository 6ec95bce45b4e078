"""Pairs of set-ups that are simulated in another order than they are measured are counted and named."""

from benchmarks.simulated.against_real import (
    WORKERS_BY_DEPLOYMENT,
    Compared,
    LoadLength,
    SetUp,
    set_ups,
    wrong_orders,
)


def compared(load: float, real: float, simulated: float) -> Compared:
    return Compared(SetUp("1P1D", "p", load), 9, [real] * 5, [simulated] * 5)


def test_pairs_in_the_wrong_order_are_named() -> None:
    near = [compared(1, 100.0, 90.0), compared(2, 104.0, 80.0)]
    assert wrong_orders(near) == (0, []), "they differ by less than 5%"
    distinct, wrong = wrong_orders([*near, compared(3, 200.0, 85.0)])
    assert distinct == 10 and len(wrong) == 5 and "TTFT p50: 1P1D p 1 < 1P1D p 3" in wrong


def test_no_two_loads_have_one_seed() -> None:
    seeds = [each.seed() for each in set_ups("2P2D")]
    assert len(set(seeds)) == len(seeds) >= 6


def test_loads_on_workers_that_compute_have_enough_requests_for_a_p90_in_25_minutes() -> None:
    computing = [name for name, workers in WORKERS_BY_DEPLOYMENT.items() if workers.computes]
    loads = [each.bench(LoadLength(seconds=30.0, requests=20)) for name in computing for each in set_ups(name)]
    assert len(loads) == 18 and min(load.requests for load in loads) == 20
    assert all(load.requests / load.rate >= 30.0 - 1e-9 and load.requests / load.rate < load.seconds for load in loads)
    assert sum(load.requests / load.rate for load in loads) < 25 * 60
