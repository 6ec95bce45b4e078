"""The cheapest deployments by estimate, and what is one step cheaper."""

from msgspec import structs

from pricing.planning.candidates import CopyFormat, candidates, cheaper, headroom
from tests.pricing.planning.figures import EXACT, copy, load

COPIES = {EXACT: [copy(2), copy(4), copy(8)]}
DEMAND = load(8.0)


def test_every_candidate_keeps_the_limits_and_one_worker_fewer_does_not() -> None:
    found = candidates(COPIES, DEMAND)
    assert found and all(each.meets(DEMAND) for each in found)
    costs = [each.dollars_per_hour for each in found]
    assert costs == sorted(costs)
    for each in found:
        for fewer in (each.with_workers(DEMAND, -1, 0) if each.prefill else None, each.with_workers(DEMAND, 0, -1)):
            assert fewer is None or not fewer.meets(DEMAND)


def test_split_and_unsplit_deployments_are_weighed() -> None:
    found = candidates(COPIES, DEMAND)
    assert {each.prefill is None for each in found} == {True, False}
    assert found[0].devices() == {"H100": 8} and found[0].within({"H100": 8}) and not found[0].within({"H100": 7})


def test_of_equal_cost_the_format_that_changes_least_comes_first() -> None:
    quantized = CopyFormat("fp8", "fp8")
    found = candidates({quantized: COPIES[EXACT], **COPIES}, DEMAND)
    assert found[0].form == EXACT and found[1].dollars_per_hour == found[0].dollars_per_hour


def test_headroom_is_the_rate_that_still_keeps_the_limits() -> None:
    best = candidates(COPIES, DEMAND)[0]
    spare = headroom(best, DEMAND)
    assert spare > 0
    for factor, kept in ((1 + 0.95 * spare, True), (1 + 1.05 * spare + 0.01, False)):
        busier = structs.replace(DEMAND, rate=factor * DEMAND.rate)
        assert best.under(busier).meets(busier) is kept


def test_the_next_cheaper_deployment_costs_less_and_misses_a_limit() -> None:
    best = candidates(COPIES, DEMAND)[0]
    less = cheaper(best, COPIES, DEMAND)
    assert less is not None and less.dollars_per_hour < best.dollars_per_hour and not less.meets(DEMAND)
