"""What GPUs of one kind can bear with one copy of a model: whether it fits, its batches, their time, what tokens cost.

    KV bytes of a batch = batch x length x bytes of a token's KV
    tokens of the pool  = (n (0.9 M - S) - W) / k r   of n GPUs with M bytes, of which a step takes S, with W bytes of
                                                    weights, and r copies of k bytes of KV a token
    tokens per second   = batch / seconds of a decode step
    dollars per million = 1e6 x n x dollars per hour / 3600 / tokens per second

Several GPUs count as one with n times the memory and the rates: sums between GPUs would come on top.
"""

from msgspec import Struct

from pricing.gpu_rates import GpuRates
from pricing.gpu_step_time import ModelShape, floor_seconds, step_seconds
from pricing.steps import StepWork

MAX_GPUS = 64
STEP_BYTES = 2 << 30
"""Memory of a GPU that steps, the driver's context and compiled kernels take. An assumption: a start measures it."""


class Capacity(Struct, frozen=True):
    """A copy of a model on `gpus` GPUs of one kind; `usable_share` of their memory holds weights and KV."""

    model: ModelShape
    gpu: GpuRates
    usable_share: float
    gpus: int = 1

    @property
    def pool_tokens(self) -> int:
        """Tokens of KV that fit beside the weights; negative where the weights do not fit."""
        room = (self.usable_share * self.gpu.memory - STEP_BYTES) * self.gpus - self.model.weights_bytes
        copies = max(1.0, self.gpus / self.model.kv_parts) if self.model.kv_parts else 1.0
        return int(room // (self.model.token_bytes * copies)) if self.model.token_bytes else int(room)

    def fits(self, length: int) -> bool:
        """Returns whether the weights and one sequence of `length` tokens fit."""
        return self.pool_tokens >= length

    def decode(self, batch: int, length: int) -> "DecodeEstimate":
        """Estimates a decode step of `batch` sequences of `length` tokens each."""
        rates = self.gpu.together(self.gpus)
        work = StepWork(sequences=batch, context=batch * length)
        seconds = step_seconds(self.model, work, rates)
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
