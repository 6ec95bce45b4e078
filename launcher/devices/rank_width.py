"""Chooses a worker's width: the number of its ranks, each with a GPU, all on one host. Runs before anything starts."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from checkpoints.model_size import ModelSize
from contracts.errors import ConfigError
from infra.config.engine import RANK_COUNTS, EngineOptions
from infra.sizes import format_bytes
from launcher.counted_noun import counted_noun
from launcher.devices.gpus import USABLE_MEMORY_SHARE
from pricing.roofline.capacity import Capacity
from pricing.roofline.gpu_rates import GpuRates
from pricing.roofline.gpu_step_time import ModelShape


class Widths(NamedTuple):
    """GPUs of each prefill worker and of each decode worker."""

    prefill: int
    decode: int


def widths_of(engine: EngineOptions) -> Widths:
    return Widths(engine.width("prefill"), engine.width("decode"))


def with_width(
    engine: EngineOptions, gpu: GpuRates, max_gpus: int, model: Callable[[], ModelSize]
) -> tuple[EngineOptions, str]:
    """Returns the options with the smallest width that fits, and a sentence about it.

    The sentence is '' for one GPU, and for a width that the user has named. `gpu`: rates and memory of a GPU;
    `max_gpus`: GPUs of the largest host; `model` returns the model's size.
    """
    if engine.tensor_parallel or (engine.prefill_tp and engine.decode_tp):
        return engine, ""
    size = model()
    length = engine.max_model_len or size.max_tokens
    width = least_width(size, gpu, length, max_gpus)
    if width == 1:
        return engine, ""
    takes = f"the weights take {format_bytes(int(size.weights_bytes))}"
    kv = f"the KV of {length} tokens {format_bytes(int(length * size.token_bytes))}"
    said = f"{width} GPUs for each worker, since {takes} and {kv}; --tensor-parallel changes it"
    return replace(engine, tensor_parallel=width), said


def least_width(size: ModelSize, gpu: GpuRates, length: int, max_gpus: int) -> int:
    """Returns the smallest width whose ranks hold the weights and a text of `length` tokens.

    If no width up to `max_gpus` does, returns the smallest that holds the weights, or else the largest. The worker's
    start then fails with a sentence about the missing memory.
    """
    shape = ModelShape(size.parameters, size.weights_bytes, size.token_bytes, kv_parts=size.kv_parts)
    widths = [width for width in RANK_COUNTS if width <= max_gpus and size.heads % width == 0]
    fits = [
        width
        for tokens in (length, 1)
        for width in widths
        if Capacity(shape, gpu, USABLE_MEMORY_SHARE, width).fits(tokens)
    ]
    return fits[0] if fits else widths[-1]


def refuse_wider(engine: EngineOptions, max_gpus: int, where: str) -> None:
    """Raises `ConfigError` for a width above the GPUs of the largest host, which the message calls `where`."""
    for option, width in engine.widths_by_option().items():
        if width > max_gpus:
            why = f"all ranks of a worker are on one host, and {where} has {counted_noun(max_gpus, 'GPU')}"
            raise ConfigError(option, width, f"{why}: widths across hosts and pipeline parallelism are not offered")
