"""An autoscaler's workers come, drain and go: every request is answered, and a wave is served by few worker-hours."""

import random
from collections.abc import Mapping, Sequence
from itertools import takewhile

from launcher.autoscale.policy import ScalingChange, ScalingInput, ScalingPolicy
from launcher.autoscale.rules import Bounds, Rules
from pricing.scaling.standing import Standing
from simulation.scaling import SimulatedScaling
from simulation.simulation import DeploymentSimulation
from tests.simulation.device import SLO_OF_TESTS, deployment, report, requests
from workloads.arrivals import Arrivals
from workloads.lengths import Lengths
from workloads.request import TimedRequest, Workload, timed

RULES = Rules({"prefill": Bounds(1, 4), "decode": Bounds(1, 4)}, SLO_OF_TESTS, up=2.0, down=10.0)


def wave() -> Sequence[TimedRequest]:
    chance = random.Random(5)
    times = takewhile(lambda at: at < 140.0, Arrivals(1.0, "sinusoid", 10.0, 140.0).times(chance))
    return list(timed(times, Workload(Lengths(500, 1500), Lengths(10, 40)).requests(chance), 1 << 20))


def by_policy(start_s: float) -> SimulatedScaling:
    policy = ScalingPolicy(RULES, 0.0)
    return SimulatedScaling(
        lambda standing, wanted, now: policy.look(ScalingInput(standing, 0.0, wanted), now), start_s
    )


def test_the_policy_adds_a_worker_while_a_wave_needs_it() -> None:
    coming = wave()
    scaled = DeploymentSimulation(deployment(1, 1, repeats=16))
    found = report(scaled.run(coming, scaling=by_policy(2.0)))
    scaled.check_conservation()
    assert found.requests == found.answered == len(coming)
    fixed = report(DeploymentSimulation(deployment(1, 1, repeats=16)).run(coming))
    assert found.good_share > 0.95 > fixed.good_share + 0.1
    assert scaled.scaling is not None and 1 <= scaled.scaling.changes <= 4
    assert scaled.fleet.paid_s(found.seconds) < 3 * found.seconds


def test_a_worker_that_goes_finishes_what_it_has() -> None:
    """A scaler adds one decode worker, which serves later, and lets another one go amid its work."""
    seen: list[tuple[int, ...]] = []

    def look(standing: Standing, wanted: Mapping[str, int], now: float) -> ScalingChange | None:
        seen.append((len(standing.decode.workers), wanted["decode"]))
        changes = {5: ScalingChange("decode", 1, "", ""), 12: ScalingChange("decode", -1, "d1", "")}
        return changes.get(len(seen))

    coming = requests(9.0, 16.0)
    simulation = DeploymentSimulation(deployment(1, 1))
    found = report(simulation.run(coming, scaling=SimulatedScaling(look, 3.0)))
    simulation.check_conservation()
    assert found.answered == len(coming)
    assert seen[3:8] == [(1, 1), (1, 1), (1, 2), (1, 2), (2, 2)] and seen[11] == (2, 2) and seen[-1] == (1, 1)
    assert [each.epoch for each in simulation.fleet.living()] == ["p1", "d2"]
    gone_s = next(at for at, (workers, _) in enumerate(seen) if at > 11 and workers == 1)
    assert simulation.fleet.paid_s(found.seconds) == found.seconds + gone_s + (found.seconds - 4.0)
