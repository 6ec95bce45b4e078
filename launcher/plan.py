"""Estimates what a model needs on GPUs (`baton plan`): memory, batches, time of a token, cost. Needs no GPU."""

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from checkpoints.model_location import locate
from checkpoints.model_size import ModelSize, model_size
from contracts.errors import BatonError, ConfigError
from contracts.kinds import KVDtype, Positive, Quantization
from infra.cli import parse
from infra.config.engine import WIDTHS
from launcher.host.gpus import USABLE_MEMORY_SHARE
from pricing.capacity import MAX_GPUS, Capacity, dollars_per_million, gpus_needed
from pricing.gpu_rates import GPU_RATES, GpuRates
from pricing.gpu_step_time import KVFormat, ModelShape, WeightFormat

BAD_INPUT = 2  # exit status
QUANTIZED_KV_SHARE = 0.515
"""Of the bytes in 16 bits: a byte for a value, and the scales."""
WEIGHT_FORMATS: dict[Quantization, WeightFormat] = {"none": "plain", "int8": "int8", "int4": "int4", "fp8": "fp8"}
KV_FORMATS: dict[KVDtype, KVFormat] = {"auto": "plain", "fp8": "fp8", "int8": "int8"}


class PlanConfig(Struct, frozen=True, kw_only=True):
    """Estimates what a model needs on GPUs: memory, largest batch, time of a decode step, cost of tokens.

    The figures are a roofline of data sheets, not measurements; the model's config.json suffices.
    Example: ./baton plan --model meta-llama/Llama-3.1-8B --gpus H100,L40S --price 3,1.2
    """

    model: Annotated[str, Meta(description="directory of a model, or its id on the Hugging Face hub")]
    gpus: Annotated[str, Meta(description=f"kinds of GPUs, divided by commas, of: {', '.join(GPU_RATES)}")] = "H100"
    price: Annotated[
        str, Meta(description="dollars per hour of a GPU of each kind, divided by commas; empty: no costs")
    ] = ""
    length: Annotated[Positive, Meta(description="tokens of each sequence, prompt and answer together")] = 2048
    quantization: Annotated[Quantization, Meta(description="weights: none, int8, int4 or fp8")] = "none"
    kv_dtype: Annotated[KVDtype, Meta(description="KV: auto (16 bits), fp8 or int8")] = "auto"

    def kinds(self) -> list[tuple[str, GpuRates, float]]:
        """Returns name, rates and price of each kind; 0 without a price. Raises `ConfigError`."""
        names = [name.strip() for name in self.gpus.split(",")]
        for name in names:
            if name not in GPU_RATES:
                raise ConfigError("--gpus", name, f"is none of {', '.join(GPU_RATES)}")
        try:
            prices = [float(price) for price in self.price.split(",")] if self.price else [0.0] * len(names)
        except ValueError:
            prices = []
        usable = len(prices) == len(names) and all(0 < price < float("inf") for price in prices)
        if self.price and not usable:
            raise ConfigError("--price", self.price, f"expected {len(names)} prices above 0, one for each of --gpus")
        return [(name, GPU_RATES[name], price) for name, price in zip(names, prices, strict=True)]


def plan(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    try:
        config = parse(PlanConfig, arguments, "baton plan")
        kinds = config.kinds()
        directory = locate(config.model, patterns=("*.json",), weights=False)
        if not (directory / "config.json").is_file():
            raise ConfigError("--model", config.model, "has no config.json, which says how large the model is")
        size = model_size(directory, "auto", config.quantization)
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    shape = model_shape(size, config.quantization, config.kv_dtype)
    print(
        f"{config.model}: each token is multiplied by {shape.parameters / 1e9:.3g} billion weights\n"
        f"weights {shape.weights_bytes / 1e9:.3g} GB; KV of a token {shape.token_bytes / 1e3:.1f} kB, "
        f"of {config.length} tokens {config.length * shape.token_bytes / 1e6:.0f} MB"
    )
    for name, gpu, price in kinds:
        print("\n" + "\n".join(estimate(shape, name, gpu, config.length, price)))
    print("\nEstimates from data sheets: ./baton bench measures what a deployment really bears.")
    return 0


def model_shape(size: ModelSize, quantization: Quantization, kv_dtype: KVDtype) -> ModelShape:
    return ModelShape(
        size.parameters,
        size.weights_bytes,
        size.token_bytes * (QUANTIZED_KV_SHARE if kv_dtype != "auto" else 1.0),
        weights=WEIGHT_FORMATS[quantization],
        kv=KV_FORMATS[kv_dtype],
        kv_parts=size.kv_parts,
    )


def estimate(shape: ModelShape, name: str, gpu: GpuRates, length: int, price: float) -> Iterator[str]:
    """Yields lines about one kind of GPU. `price`: dollars per hour of a GPU, 0 if unknown."""
    read_ms, multiply_ms = 1e3 * shape.weights_bytes / gpu.read, 2e3 * shape.parameters / gpu.multiply
    yield (
        f"{name} ({gpu.memory / 1e9:.0f} GB): one GPU reads the weights in {read_ms:.3g} ms, and computes a token in "
        f"{multiply_ms:.2g} ms: up to {max(1, int(read_ms / multiply_ms))} sequences, reading bounds a step"
    )
    gpus = gpus_needed(shape, gpu, USABLE_MEMORY_SHARE, length)
    if gpus is None:
        yield f"  weights and one sequence do not fit into {MAX_GPUS} GPUs; quantized weights are smaller"
        return
    capacity = Capacity(shape, gpu, USABLE_MEMORY_SHARE, gpus)
    if gpus > 1:
        how = f"--tensor-parallel {gpus}" if gpus <= WIDTHS[-1] else f"more ranks than Baton's {WIDTHS[-1]}"
        yield (
            f"  does not fit into one: {gpus} would hold it with {how}; the figures below leave out what GPUs say to "
            "each other"
        )
    most = capacity.pool_tokens // length
    yield f"  {gpus} GPU{'s' if gpus > 1 else ''}: KV of {capacity.pool_tokens} tokens, {most} sequences of {length}"
    dollars = "   $/million" if price else ""
    yield f"  {'batch':>7}{'step ms':>10}{'floor ms':>10}{'tokens/s':>10}{'of the products':>17}{dollars}"
    for batch in _batches(most):
        step = capacity.decode(batch, length)
        cost = f"{dollars_per_million(price * gpus, step.tokens_per_s):12.3f}" if price else ""
        yield (
            f"  {batch:7}{1e3 * step.seconds:10.3g}{1e3 * step.floor_seconds:10.3g}{step.tokens_per_s:10.0f}"
            f"{100 * step.multiply_share:16.1f}%{cost}"
        )


def _batches(most: int) -> list[int]:
    """Returns the powers of two below the largest batch, and the largest batch, up to 512."""
    most = min(most, 512)
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]
