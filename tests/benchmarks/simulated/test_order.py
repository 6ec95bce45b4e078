"""Shows on a short trace what the orders of prompts come to: simulated time, so the figures are the same each time."""

from random import Random

from benchmarks.simulated.order import POLICIES, Arrival, serve, trace
from contracts.slo import percentile


def test_a_flood_raises_only_its_own_ttft() -> None:
    quiet = [Arrival(0.5 * number, 200, "quiet") for number in range(20)]
    flood = [Arrival(0.01 * number, 400, "flood") for number in range(1000)]
    worst = {}
    for policy in POLICIES:
        served = serve([*quiet, *flood], policy)
        assert len(served) == 1020
        worst[policy] = max(each.ttft for each in served if each.arrival.tenant == "quiet")
    assert worst["ours"] < 0.3 < worst["first come"]


def test_short_prompts_do_not_wait_for_long_ones() -> None:
    arrivals = trace(Random(1), 20, 4.0, "")
    short = {
        policy: percentile([each.ttft for each in serve(arrivals, policy) if each.arrival.tokens < 1000], 0.95)
        for policy in POLICIES
    }
    assert short["shortest first"] <= short["ours"] < short["first come"] / 3
