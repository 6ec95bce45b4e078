"""Capacity of GPUs of one kind for one copy of a model: whether it fits, its batches, their time, the cost of tokens.

    KV bytes of a batch = batch x length x bytes of a token's KV
    tokens of the pool  = (n (0.9 M - S) - W) / k r   of n GPUs with M bytes, of which a step takes S, with W bytes of
                                                    weights, and r copies of k bytes of KV a token
    tokens per second   = batch / seconds of a decode step
    dollars per million = 1e6 x n x dollars per hour / 3600 / tokens per second

Several GPUs count as one with n times the memory and the rates. A step then has two sums a layer over all n, as rings
have them: 2 (n - 1) / n times a row's 2 h bytes over the link's rate for each row, and a latency for each sum.
"""

from msgspec import Struct, structs

from pricing.roofline.gpu_rates import GpuRates
from pricing.roofline.gpu_step_time import ModelShape, expected_costs, floor_seconds, step_seconds
from pricing.step_costs.steps import StepCosts, StepWork

MAX_GPUS = 64
STEP_BYTES = 2 << 30
"""Memory of a GPU that steps, the driver's context and compiled kernels take. An assumption: a start measures it."""
LAYER_SUMS = 2
"""Sums of a layer over the ranks of a copy: behind attention and behind the MLP."""
VALUE_BYTES = 2


class SumCosts(Struct, frozen=True):
    """Seconds of a step's sums over the GPUs of a copy: for each row, and for each step."""

    row: float = 0.0
    step: float = 0.0


def sum_costs(gpus: int, layers: int, hidden: int, bytes_per_s: float, latency_s: float) -> SumCosts:
    """Returns the costs of rings over `gpus` GPUs whose links have this rate each way; `hidden`: values of a row."""
    if gpus == 1:
        return SumCosts()
    sums = LAYER_SUMS * layers
    return SumCosts(sums * 2 * (gpus - 1) / gpus * hidden * VALUE_BYTES / bytes_per_s, sums * latency_s)


class Capacity(Struct, frozen=True):
    """A copy of a model on `gpus` GPUs of one kind; `usable_share` of their memory holds weights and KV."""

    model: ModelShape
    gpu: GpuRates
    usable_share: float
    gpus: int = 1
    sums: SumCosts = SumCosts()

    @property
    def pool_tokens(self) -> int:
        """Tokens of KV that fit beside the weights; negative where the weights do not fit."""
        room = (self.usable_share * self.gpu.memory - STEP_BYTES) * self.gpus - self.model.weights_bytes
        copies = max(1.0, self.gpus / self.model.kv_parts) if self.model.kv_parts else 1.0
        return int(room // (self.model.token_bytes * copies)) if self.model.token_bytes else int(room)

    def fits(self, length: int) -> bool:
        """Returns whether the weights and one sequence of `length` tokens fit."""
        return self.pool_tokens >= length

    @property
    def rates(self) -> GpuRates:
        """Rates of all GPUs of the copy together."""
        return self.gpu.together(self.gpus)

    def seconds(self, work: StepWork) -> float:
        """Predicts the seconds of a step, its sums over the GPUs included."""
        rows = work.prompt_tokens + work.sequences + work.rows
        return step_seconds(self.model, work, self.rates) + self.sums.step + self.sums.row * rows

    def costs(self) -> StepCosts:
        """Returns the step costs of a copy that has not run yet, its sums over the GPUs included."""
        alone, sums = expected_costs(self.model, self.rates), self.sums
        return structs.replace(
            alone,
            step=alone.step + sums.step,
            prompt_token=alone.prompt_token + sums.row,
            sequence=alone.sequence + sums.row,
            row=alone.row + sums.row,
        )

    def decode(self, batch: int, length: int) -> "DecodeEstimate":
        """Estimates a decode step of `batch` sequences of `length` tokens each."""
        work = StepWork(sequences=batch, context=batch * length)
        seconds, rates = self.seconds(work), self.rates
        busy = 2 * self.model.parameters * batch / rates.multiply
        return DecodeEstimate(batch, seconds, floor_seconds(self.model, work, rates), busy / seconds)


class DecodeEstimate(Struct, frozen=True):
    """A decode step: predicted and least seconds, and the share of the matrix rate that it uses."""

    batch: int
    seconds: float
    floor_seconds: float
    multiply_share: float

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.seconds


def gpus_needed(model: ModelShape, gpu: GpuRates, usable_share: float, length: int) -> int | None:
    """Returns the smallest power of two of GPUs that hold the weights and a sequence of `length`; None above 64."""
    gpus = 1
    while gpus <= MAX_GPUS:
        if Capacity(model, gpu, usable_share, gpus).fits(length):
            return gpus
        gpus *= 2
    return None


def dollars_per_million(dollars_per_hour: float, tokens_per_s: float) -> float:
    return 1e6 * dollars_per_hour / 3600 / tokens_per_s
