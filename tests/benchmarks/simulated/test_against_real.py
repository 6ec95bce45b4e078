"""Pairs of set-ups that are simulated in another order than they are measured are counted and named."""

from benchmarks.simulated.against_real import Compared, SetUp, set_ups, wrong_orders


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
