"""The router's choices are worth what they were: a change that costs more than 1% of goodput is seen here."""

import pytest

from simulation.simulation import DeploymentSimulation
from tests.simulation.device import deployment, report, requests

KNOWN_GOOD = {(0, 3, 13.5): 799, (1, 2, 17.0): 953, (2, 2, 22.0): 1246}
"""Good requests of three seeds of 20 s each by prefill workers, decode workers and rate, when this was written."""
LOST_SHARE = 0.01


@pytest.mark.parametrize(("prefill", "decode", "rate"), KNOWN_GOOD)
def test_goodput_is_what_it_was(prefill: int, decode: int, rate: float) -> None:
    good = 0
    for seed in range(3):
        simulation = DeploymentSimulation(deployment(prefill, decode, repeats=16))
        good += report(simulation.run(requests(rate, 20.0, seed))).good
        simulation.check_conservation()
    assert good >= (1 - LOST_SHARE) * KNOWN_GOOD[prefill, decode, rate]
