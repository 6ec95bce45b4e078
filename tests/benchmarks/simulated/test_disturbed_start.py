"""Wrong costs at the start, and cores that neighbours take, cost little goodput: the router learns within seconds."""

from benchmarks.simulated.disturbed_start import simulate

KNOWN_GOOD = 379
"""Good requests of four starts, when this was written; 306 while a burst at the start taught too large a margin."""


def test_an_overload_behind_a_disturbed_start_has_its_goodput() -> None:
    found = [simulate(seed) for seed in range(4)]
    assert sum(each.good for each in found) >= 0.85 * KNOWN_GOOD
    assert all(each.accepted < each.sent for each in found), "twice what can be borne: some requests are refused"
