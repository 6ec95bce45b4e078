"""Simulates a planned deployment under the planned load, with the code that serves."""

from collections.abc import Sequence

from msgspec import Struct, structs

from contracts.slo import SLO
from pricing.planning.candidates import PlannedDeployment
from pricing.planning.load import PlannedLoad
from pricing.planning.roles import MAX_BATCH, RoleEstimate
from simulation.deployment import LinkFigures, SimulatedDeployment, SimulatedDevice
from simulation.roofline import roofline_device
from simulation.simulation import DeploymentSimulation
from workloads.report import Report, make_report
from workloads.request import TimedRequest

STEP_SHARE = 0.5
"""Share of the TPOT limit that a step with decodes may take; it becomes --step-ms."""
REPEATED_STEPS = 16
ROUND_TRIP_S = 0.0001


class SimulatedPlan(Struct, frozen=True):
    """A deployment and the report of its simulation."""

    deployment: PlannedDeployment
    report: Report
    load: PlannedLoad

    @property
    def passed(self) -> bool:
        return self.report.good_share >= self.load.share

    @property
    def dollars_per_million(self) -> float:
        """Dollars for a million output tokens of good requests at the mean rate; infinite without any."""
        tokens_per_s = self.load.mean_rate * self.load.output_tokens * self.report.good_share
        return 1e6 * self.deployment.dollars_per_hour / 3600 / tokens_per_s if tokens_per_s else float("inf")


def simulate_plan(deployment: PlannedDeployment, load: PlannedLoad, requests: Sequence[TimedRequest]) -> SimulatedPlan:
    first = deployment.prefill
    simulation = DeploymentSimulation(
        SimulatedDeployment(
            prefill=first.workers if first is not None else 0,
            decode=deployment.decode.workers,
            device=_device(deployment.decode, load),
            prefill_device=_device(first, load) if first is not None else None,
            link=LinkFigures(min(_link(role) for role in deployment.roles), ROUND_TRIP_S),
            repeats=REPEATED_STEPS,
        )
    )
    outcomes = simulation.run(requests)
    slo = SLO(1000 * load.ttft_s, 1000 * load.tpot_s)
    report = make_report(outcomes, slo, server="simulated", model=str(deployment.form), load={})
    return SimulatedPlan(deployment, report, load)


def _device(role: RoleEstimate, load: PlannedLoad) -> SimulatedDevice:
    device = roofline_device(role.copy.name, role.copy.capacity)
    return structs.replace(device, step_target_s=STEP_SHARE * load.tpot_s, max_sequences=MAX_BATCH)


def _link(role: RoleEstimate) -> float:
    """Returns the bytes per second of KV between two workers, which may run on two hosts."""
    return role.copy.device.links.network * role.copy.capacity.gpus
