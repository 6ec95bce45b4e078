"""A simulated worker on GPUs that were not measured: its steps last as their data sheets predict, times a factor."""

from pricing.roofline.capacity import Capacity
from pricing.step_costs.steps import StepWork
from simulation.deployment import SimulatedDevice

STEP_TOKENS = 8192
"""Token budget of a step on a GPU: the default of --max-batch-tokens."""


def roofline_device(
    name: str, copy: Capacity, *, factor: float = 1.0, step_tokens: int = STEP_TOKENS
) -> SimulatedDevice:
    """Returns the device of a copy. Its pool has blocks of the usual size."""

    def seconds(work: StepWork) -> float:
        return factor * copy.seconds(work)

    device = SimulatedDevice(
        name=name,
        gpus=copy.gpus,
        seconds=seconds,
        costs=copy.costs(),
        token_bytes=round(copy.model.token_bytes),
        blocks=0,
        step_tokens=step_tokens,
    )
    return device.with_pool(copy.pool_tokens, device.block_tokens)
