"""Predicts the time of a step on a GPU from what its kernels read, multiply and issue, before any step was measured.

    seconds = max(W / r, 2 P t / m, i P / 32 u)        linear layers: W bytes of weights, P weights met by t rows
            + max(C k / r, a C k / 32 u)               attention over C tokens of k bytes of KV
            + 2 w p / m                                pairs p of a prompt's tokens, each of w multiply-adds
            + n g                                      n launches, g seconds from one to the next

with the GPU's rates `r` of reading, `m` of multiplying and `u` of issuing, of each the share that kernels reach. `i`
instructions of a weight and `a` of a byte of KV are counts of the compiled kernels (`benchmarks.compile_kernels`). The
floor is the larger of reading and multiplying, at the data sheet's rates. A worker replaces all of it by measurements.
"""

from typing import Literal

from msgspec import Struct

from pricing.roofline.gpu_rates import WARP_THREADS, GpuRates
from pricing.step_costs.steps import StepCosts, StepWork

READ_SHARE = 0.8  # of the data sheet's bandwidth, which decode steps reach
MULTIPLY_SHARE = 0.6  # of the data sheet's rate of products, which steps of prompts reach
ISSUE_SHARE = 0.6  # of all issue slots, which loops of dequantizing kernels reach
RECORDED_LAUNCH_S = 1.0e-6  # from a kernel of a recorded step to the next
DIRECT_LAUNCH_S = 4.0e-6  # a launch takes on the host, where a step is not recorded

WeightFormat = Literal["plain", "int8", "fp8", "int4", "fp4"]
KVFormat = Literal["plain", "int8", "fp8"]
WEIGHT_INSTRUCTIONS: dict[WeightFormat, float] = {"plain": 0.0, "int8": 5.3, "fp8": 3.8, "int4": 3.5, "fp4": 4.0}
"""Instructions of a weight in decode steps, on sm_90. Plain weights are multiplied by cuBLAS, which memory bounds."""
KV_INSTRUCTIONS: dict[KVFormat, float] = {"plain": 1.6, "int8": 4.0, "fp8": 3.5}
"""Instructions of a byte of KV in decode attention, on sm_90: 4 warps of 32 threads read 64 positions of 128 values."""


class ModelShape(Struct, frozen=True):
    """The figures of a model on which a step's time depends.

    `parameters`: weights that each token is multiplied by; `token_bytes`: KV of a token in all layers; `pair_width`:
    multiply-adds of a pair of tokens in all layers, 2 x heads x head size x layers; `launches`: kernels of a step;
    `kv_parts`: GPUs among which a token's KV can be divided, 0: any number.
    """

    parameters: float
    weights_bytes: float
    token_bytes: float
    pair_width: float = 0.0
    launches: int = 0
    weights: WeightFormat = "plain"
    kv: KVFormat = "plain"
    kv_parts: int = 0


def step_seconds(model: ModelShape, work: StepWork, gpu: GpuRates, recorded: bool = True) -> float:
    """Predicts the seconds of a step. A step that is not recorded takes no less than its launches take on the host."""
    rows = work.prompt_tokens + work.sequences + work.rows
    device = (
        _linear(model, rows, gpu)
        + _cached(model, work.context, gpu)
        + 2 * model.pair_width * work.pairs / (gpu.multiply * MULTIPLY_SHARE)
        + model.launches * RECORDED_LAUNCH_S
    )
    return device if recorded else max(device, model.launches * DIRECT_LAUNCH_S)


def floor_seconds(model: ModelShape, work: StepWork, gpu: GpuRates) -> float:
    """Returns the least seconds of a step: its bytes over the bandwidth, or its operations over the matrix rate."""
    rows = work.prompt_tokens + work.sequences + work.rows
    operations = 2 * model.parameters * rows + 2 * model.pair_width * work.pairs
    return max((model.weights_bytes + work.context * model.token_bytes) / gpu.read, operations / gpu.multiply)


def expected_costs(model: ModelShape, gpu: GpuRates) -> StepCosts:
    """Returns step costs for a model that has not run on this GPU yet."""
    token = 2 * model.parameters / (gpu.multiply * MULTIPLY_SHARE)
    return StepCosts(
        step=_linear(model, 1, gpu) + model.launches * RECORDED_LAUNCH_S,
        prompt_token=token,
        pair=2 * model.pair_width / (gpu.multiply * MULTIPLY_SHARE),
        sequence=token,
        context_token=_cached(model, 1, gpu),
        row=token,
    )


def _linear(model: ModelShape, rows: int, gpu: GpuRates) -> float:
    issued = WEIGHT_INSTRUCTIONS[model.weights] * model.parameters / WARP_THREADS
    return max(
        model.weights_bytes / (gpu.read * READ_SHARE),
        2 * model.parameters * rows / (gpu.multiply * MULTIPLY_SHARE),
        issued / (gpu.issue * ISSUE_SHARE),
    )


def _cached(model: ModelShape, tokens: int, gpu: GpuRates) -> float:
    size = tokens * model.token_bytes
    issued = KV_INSTRUCTIONS[model.kv] * size / WARP_THREADS
    return max(size / (gpu.read * READ_SHARE), issued / (gpu.issue * ISSUE_SHARE))
