"""Load that copies of a model bear in a role: TTFT of prefill workers, TPOT of decode workers.

A prefill worker computes prompt after prompt, as the server of a queue. A decode worker runs a batch b whose steps last
t(b); by Little's law b = r o t(b) with r requests per second of o tokens each. A worker that does both decodes in the
share 1 - u of its time, u being the share of prompts: b = r o t(b) / (1 - u). All of this is an estimate, which chooses
the deployments that are simulated.
"""

import math
from typing import Literal

from msgspec import Struct

from pricing.planning.devices import PlannedDevice
from pricing.planning.load import PlannedLoad, ServiceTimes, waiting_s
from pricing.roofline.capacity import Capacity
from pricing.roofline.gpu_step_time import MULTIPLY_SHARE, READ_SHARE
from pricing.step_costs.steps import StepWork

MAX_BATCH = 256
"""Sequences that a worker runs at once: the default of --max-sequences."""
BISECTION_STEPS = 30
Binding = Literal["products", "reading weights", "reading KV", "sums between devices", "memory for KV", "batch limit"]


class ModelCopy(Struct, frozen=True):
    """A worker: a model on `capacity.gpus` devices of one host."""

    device: PlannedDevice
    capacity: Capacity

    @property
    def name(self) -> str:
        width = self.capacity.gpus
        return self.device.name if width == 1 else f"{self.device.name} x {width}"

    @property
    def dollars_per_hour(self) -> float:
        assert self.device.price is not None
        return self.capacity.gpus * self.device.price.dollars_per_hour

    def prompt_times(self, load: PlannedLoad) -> ServiceTimes:
        return ServiceTimes.of([self.capacity.seconds(prompt.work) for prompt in load.prompts], load.share)

    def largest_batch(self, load: PlannedLoad) -> int:
        """Returns how many sequences of mean length fit into the memory."""
        return max(0, int(self.capacity.pool_tokens // (load.prompt_tokens + load.output_tokens)))

    def step_s(self, batch: float, context_each: float) -> float:
        return self.capacity.seconds(decoding(batch, context_each))

    def binding(self, work: StepWork) -> Binding:
        """Returns the resource that takes most of a step's time."""
        model, rates, sums = self.capacity.model, self.capacity.rates, self.capacity.sums
        rows = work.prompt_tokens + work.sequences
        products = 2 * model.parameters * rows + 2 * model.pair_width * work.pairs
        parts: dict[Binding, float] = {
            "products": products / (rates.multiply * MULTIPLY_SHARE),
            "reading weights": model.weights_bytes / (rates.read * READ_SHARE),
            "reading KV": work.context * model.token_bytes / (rates.read * READ_SHARE),
            "sums between devices": sums.step + sums.row * rows,
        }
        return max(parts, key=parts.__getitem__)


class RoleEstimate(Struct, frozen=True):
    """Workers of a role under a load: times that the wanted share of requests keeps, the batch, and what limits it."""

    copy: ModelCopy
    workers: int
    ttft_s: float
    tpot_s: float
    batch: float
    binds: Binding

    def meets(self, load: PlannedLoad) -> bool:
        return self.ttft_s <= load.ttft_s and self.tpot_s <= load.tpot_s


def decoding(batch: float, context_each: float) -> StepWork:
    return StepWork(sequences=round(batch), context=round(batch * context_each))


def prefill(copy: ModelCopy, workers: int, load: PlannedLoad) -> RoleEstimate:
    times = copy.prompt_times(load)
    ttft = waiting_s(times, load.rate, workers, load.share) + times.high
    longest = max(load.prompts, key=lambda prompt: prompt.tokens)
    return RoleEstimate(copy, workers, ttft, 0.0, 1.0, copy.binding(longest.work))


def decode(copy: ModelCopy, workers: int, load: PlannedLoad) -> RoleEstimate:
    return _decode(copy, workers, load, 0.0)


def both(copy: ModelCopy, workers: int, load: PlannedLoad) -> RoleEstimate:
    """Estimates workers that compute prompts and decode."""
    times = copy.prompt_times(load)
    busy = load.rate * times.mean / workers
    if busy >= 1:
        return RoleEstimate(copy, workers, math.inf, math.inf, math.inf, "products")
    found = _decode(copy, workers, load, busy)
    step = found.tpot_s * (1 - busy)
    return RoleEstimate(
        copy,
        workers,
        waiting_s(times, load.rate, workers, load.share) + times.high + step,
        found.tpot_s,
        found.batch,
        "products" if busy > 0.5 else found.binds,
    )


def _decode(copy: ModelCopy, workers: int, load: PlannedLoad, busy: float) -> RoleEstimate:
    """`busy`: share of the time that goes to prompts."""
    most = min(copy.largest_batch(load), MAX_BATCH)
    needed = load.rate * load.output_tokens / workers / (1 - busy)  # tokens per second of a worker while it decodes
    context_each = load.mean_context
    low, high = 0.0, float(most)
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if needed * copy.step_s(max(1.0, middle), context_each) > middle else (low, middle)
    crowded = max(1.0, high + load.spread * math.sqrt(high))
    if crowded > most:
        binds: Binding = "memory for KV" if most < MAX_BATCH else "batch limit"
        return RoleEstimate(copy, workers, 0.0, math.inf, most, binds)
    tpot = copy.step_s(crowded, context_each) / (1 - busy)
    return RoleEstimate(copy, workers, 0.0, tpot, high, copy.binding(decoding(crowded, context_each)))
