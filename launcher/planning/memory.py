"""The calculator of `baton plan --memory`: weights, KV, and for each batch a step's time and the price of tokens."""

from collections.abc import Iterator

from checkpoints.model_size import KV_VALUE_BYTES, ModelSize
from infra.config.engine import RANK_COUNTS
from launcher.devices.gpus import USABLE_MEMORY_SHARE
from launcher.planning.copies import capacity_of
from launcher.planning.options import PlanConfig
from pricing.planning.devices import PlannedDevice
from pricing.roofline.capacity import MAX_GPUS, Capacity, dollars_per_million, gpus_needed
from pricing.roofline.gpu_step_time import ModelShape

MAX_SHOWN_BATCH = 512


def memory(config: PlanConfig, size: ModelSize, shape: ModelShape) -> Iterator[str]:
    """Yields the lines about a model and each device. `shape`: the model's, at --length, in the chosen formats."""
    length, attention = config.length, size.attention
    yield f"{config.model}: each token is multiplied by {shape.parameters / 1e9:.3g} billion weights"
    yield f"weights {shape.weights_bytes / 1e9:.3g} GB"
    values = f"{attention.layer_values:g} values ({attention.kind}"
    if not attention.latent:
        values += f": 2 x {attention.kv_heads} KV heads x {attention.layer_values / 2 / max(1, attention.kv_heads):g}"
    each = shape.token_bytes * length / max(1.0, attention.layer_tokens(length)) / max(1, attention.layers)
    yield (
        f"KV of a token {shape.token_bytes / 1e3:.1f} kB = {attention.layers} layers x {values}) x "
        f"{each / max(1.0, attention.layer_values):.3g} bytes{_windows(size, length)}"
    )
    yield f"KV of {length} tokens {length * shape.token_bytes / 1e6:.0f} MB"
    if config.batch:
        total = shape.weights_bytes + config.batch * length * shape.token_bytes
        yield f"weights and KV of {config.batch} sequences {total / 1e9:.3g} GB"
    for device in config.chosen_devices():
        yield ""
        yield from _device(config, size, shape, device)


def _windows(size: ModelSize, length: int) -> str:
    attention = size.attention
    if not attention.window_layers:
        return ""
    return (
        f", as {attention.window_layers} layers store {min(attention.window, length)} of {length} tokens "
        f"({attention.layers * attention.layer_values * KV_VALUE_BYTES / 1e3:.1f} kB in 16 bits without windows)"
    )


def _device(config: PlanConfig, size: ModelSize, shape: ModelShape, device: PlannedDevice) -> Iterator[str]:
    gpu, length = device.rates, config.length
    read_ms, multiply_ms = 1e3 * shape.weights_bytes / gpu.read, 2e3 * shape.parameters / gpu.multiply
    yield (
        f"{device.name} ({gpu.memory / 1e9:.0f} GB): one reads the weights in {read_ms:.3g} ms, and computes a token "
        f"in {multiply_ms:.2g} ms: up to {max(1, int(read_ms / multiply_ms))} sequences, reading bounds a step"
    )
    gpus = gpus_needed(shape, gpu, USABLE_MEMORY_SHARE, length * max(1, config.batch))
    if config.tokens_per_s and device.price is not None:
        price = device.price.dollars_per_hour
        dollars = dollars_per_million(price, config.tokens_per_s)
        yield f"  at {config.tokens_per_s:g} tokens/s and ${price:g}/h: ${dollars:.3f} a million"
    if gpus is None:
        yield f"  weights and KV do not fit into {MAX_GPUS} devices; quantized weights are smaller"
        return
    if gpus > 1:
        widths = [width for width in RANK_COUNTS if width >= gpus and size.attention.divides_among(width)]
        how = f"--tensor-parallel {widths[0]} holds it" if widths else "no tensor-parallel width of one host holds it"
        yield f"  does not fit into one: {how}"
    capacity = capacity_of(device, size, shape, gpus)
    most = capacity.pool_tokens // length
    yield f"  {gpus} device{'s' if gpus > 1 else ''}: KV of {capacity.pool_tokens} tokens, {most} sequences of {length}"
    yield from _steps(capacity, device, length, config.batch or most)


def _steps(capacity: Capacity, device: PlannedDevice, length: int, most: int) -> Iterator[str]:
    price = device.price
    dollars = f"   $/million at ${price.dollars_per_hour:g}/h of {price.as_of}" if price is not None else ""
    yield f"  {'batch':>7}{'step ms':>10}{'floor ms':>10}{'tokens/s':>10}{'of the products':>17}{dollars}"
    for batch in _batches(most):
        step = capacity.decode(batch, length)
        cost = ""
        if price is not None:
            cost = f"{dollars_per_million(price.dollars_per_hour * capacity.gpus, step.tokens_per_s):12.3f}"
        yield (
            f"  {batch:7}{1e3 * step.seconds:10.3g}{1e3 * step.floor_seconds:10.3g}{step.tokens_per_s:10.0f}"
            f"{100 * step.multiply_share:16.1f}%{cost}"
        )


def _batches(most: int) -> list[int]:
    """Returns the powers of two below the largest batch, and the largest batch, up to 512."""
    most = min(most, MAX_SHOWN_BATCH)
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]
