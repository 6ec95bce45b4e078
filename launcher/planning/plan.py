"""Names the cheapest deployment that keeps an objective (`baton plan`), or computes memory. Needs no GPU."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from checkpoints.model_location import locate
from checkpoints.model_size import ModelSize, model_size
from contracts.errors import ConfigError
from contracts.kinds import KVDtype, Quantization
from infra.cli import parse
from launcher.planning.advice import described, lacking, ranked, ranking
from launcher.planning.command_lines import command_lines
from launcher.planning.copies import SizeAndShape, model_copies
from launcher.planning.demand import demand
from launcher.planning.memory import memory
from launcher.planning.options import PlanConfig
from launcher.planning.search import simulated, within
from launcher.planning.trial import SimulatedPlan, simulate_plan
from launcher.refusal import refusing
from launcher.words import INTERRUPTED_STATUS
from pricing.planning.candidates import CopyFormat, cheaper
from pricing.planning.devices import PlannedDevice
from pricing.planning.load import PlannedLoad
from pricing.planning.shortfall import too_few, unmet
from pricing.roofline.gpu_step_time import KVFormat, ModelShape, WeightFormat

PLANNED, NOTHING_MEETS = 0, 1  # exit statuses
QUANTIZED_KV_SHARE = 0.515
"""Share of the bytes of KV in 16 bits: a byte for each value, and the scales."""
WEIGHT_FORMATS: dict[Quantization, WeightFormat] = {"none": "plain", "int8": "int8", "int4": "int4", "fp8": "fp8"}
KV_FORMATS: dict[KVDtype, KVFormat] = {"auto": "plain", "fp8": "fp8", "int8": "int8"}


@refusing
def plan(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    config = parse(PlanConfig, arguments, "baton plan")
    config.check()
    directory = locate(config.model, patterns=("*.json",), weights=False)
    if not (directory / "config.json").is_file():
        raise ConfigError("--model", config.model, "has no config.json, which says how large the model is")
    if not config.memory:
        return _plan(config, directory)
    form = config.formats()[0]
    print("\n".join(memory(config, *_size_and_shape(config, directory, config.length, form))))
    print("\nEstimates from data sheets: ./baton bench measures what a deployment really bears.")
    return PLANNED


def known_size(directory: Path, option: str, model: str, weights: Quantization) -> ModelSize:
    """Returns a model's size by its config. Raises `ConfigError` if that does not say it, or tells of other layers."""
    size = model_size(directory, "auto", weights)
    if others := size.attention.other_kinds:
        raise ConfigError(option, model, f"has layers of {', '.join(others)}, whose memory is not known")
    if not size.attention.layers or not size.attention.layer_values:
        raise ConfigError(option, model, "has a config.json that does not say its layers and heads")
    return size


def model_shape(size: ModelSize, quantization: Quantization, kv_dtype: KVDtype, length: int = 0) -> ModelShape:
    """Returns the figures on which a step's time depends. `length`: tokens of a text, for sliding windows; 0: any."""
    attention = size.attention
    stored = attention.layer_tokens(length) / length if length else 1.0
    return ModelShape(
        size.parameters,
        size.weights_bytes,
        size.token_bytes * stored * (QUANTIZED_KV_SHARE if kv_dtype != "auto" else 1.0),
        pair_width=attention.pair_values * attention.layers,
        weights=WEIGHT_FORMATS[quantization],
        kv=KV_FORMATS[kv_dtype],
        kv_parts=size.kv_parts,
    )


def _size_and_shape(config: PlanConfig, directory: Path, length: int, form: CopyFormat) -> SizeAndShape:
    """Reads a model's size and shape. Raises `ConfigError` for a config without sizes, or a model without plain KV."""
    weights = msgspec.convert(form.weights, Quantization)
    size = known_size(directory, "--model", config.model, weights)
    return size, model_shape(size, weights, msgspec.convert(form.kv, KVDtype), length)


def _plan(config: PlanConfig, directory: Path) -> int:
    devices, available = config.priced_devices(), config.kinds()
    requests = list(config.timed_requests(config.chance()))
    load = demand(config, requests)
    shape_of = partial(_size_and_shape, config, directory, round(load.prompt_tokens + load.output_tokens))
    copies = model_copies(config.formats(), devices, config.copy_widths(), load.longest, shape_of)
    print("\n".join(_demanded(config, load, devices)))
    if not copies:
        raise ConfigError(
            "--devices", config.devices, f"no width holds the model and {load.longest} tokens; ./baton plan --memory"
        )
    found = within(copies, load, available)
    print(f"tried   {sum(map(len, copies.values()))} copies of the model; {len(found)} deployments of them would do\n")
    if not found:
        print("nothing keeps the objective:")
        print("\n".join(unmet(copies, load) or too_few(copies, load, available)))
        return NOTHING_MEETS
    tried, interrupted = list[SimulatedPlan](), False
    try:
        for trial in simulated(
            found, load, config.simulate, available, lambda each: simulate_plan(each, load, requests)
        ):
            tried.append(trial)
    except KeyboardInterrupt:
        interrupted = True
    if tried:
        print("\n".join(ranking(tried, load)) + "\n")
    if interrupted:
        print(f"interrupted: {len(tried)} deployments were simulated, so nothing is advised")
        return INTERRUPTED_STATUS
    best = ranked(tried)[0]
    if not best.passed:
        print(f"no simulated deployment keeps the objective; a larger --simulate than {config.simulate} tries more")
        return NOTHING_MEETS
    print(f"advice: {described(best.deployment)}: ${best.dollars_per_million:.3f} a million good tokens")
    missing = lacking(best, tried, cheaper(best.deployment, copies, load), load)
    print("\n".join([*missing, "", *command_lines(best.deployment, load, config.model)]))
    return PLANNED


def _demanded(config: PlanConfig, load: PlannedLoad, devices: Sequence[PlannedDevice]) -> Iterator[str]:
    tokens = sum(prompt.cached + prompt.tokens for prompt in load.prompts)
    cached = sum(prompt.cached for prompt in load.prompts) / tokens
    yield (
        f"{config.model}: {load.rate:g} requests/s, {load.prompt_tokens:.0f} prompt tokens"
        f"{f' ({cached:.0%} cached)' if cached else ''} and {load.output_tokens:.0f} output tokens on average"
    )
    yield f"good    TTFT ≤ {config.slo_ttft_ms:g} ms and TPOT ≤ {config.slo_tpot_ms:g} ms, of {config.share:.0%}"
    for device in devices:
        if (price := device.price) is not None:
            source = f" ({price.source})" if price.source else ""
            yield f"price   {device.name} ${price.dollars_per_hour:g}/h, {price.as_of}{source}"
