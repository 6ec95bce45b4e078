"""The gateway's own code serves simulated requests: what holds for a gateway holds here."""

from typing import Any

import pytest
from msgspec import structs

from gateway.requests.dispatch import Dispatch
from infra.config.gateway import GatewayConfig
from simulation.simulation import DeploymentSimulation
from tests.simulation.device import deployment, requests
from workloads.request import PlannedRequest, Span, TimedRequest


def test_answers_that_end_in_one_step_let_as_many_requests_in() -> None:
    coming = [TimedRequest(0.0, PlannedRequest(50, spans=(Span(seed, 64),))) for seed in range(24)]
    described = structs.replace(deployment(0, 1), gateway=GatewayConfig(model="simulated", max_requests=8))
    outcomes = DeploymentSimulation(described).run(coming)
    ended = sorted(each.ended_s for each in outcomes)
    assert len(ended) == 24 and ended[-1] < 3.5 * ended[7], "eight at a time"


def test_a_bug_ends_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def bug(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Dispatch, "begin", bug)
    with pytest.raises(ZeroDivisionError):
        DeploymentSimulation(deployment(0, 1)).run(requests(1.0, 4.0))
