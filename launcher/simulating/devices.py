"""Makes simulated workers from options: on GPUs by their data sheets, or with costs of `bench --calibrate`."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from checkpoints.config_fields import number
from checkpoints.config_size import adapter_values, weight_counts
from checkpoints.model_location import locate
from checkpoints.model_size import ModelSize
from checkpoints.weight_sizes import text_config
from contracts.errors import ConfigError
from infra.config.engine import MemoryOptions
from infra.redis.records import Role
from infra.sizes import format_bytes
from launcher.bench.calibration import Calibration
from launcher.devices.rank_width import least_width
from launcher.planning.copies import capacity_of
from launcher.planning.plan import known_size, model_shape
from launcher.simulating.features import FeatureOptions
from launcher.simulating.options import SimulateConfig
from pricing.planning.devices import DEVICES
from pricing.roofline.adapters import ADAPTER_VALUE_BYTES, adapter_seconds
from pricing.roofline.capacity import Capacity, SumCosts
from pricing.roofline.gpu_step_time import ModelShape
from pricing.step_costs.steps import StepWork
from simulation.adapters import SimulatedAdapters
from simulation.deployment import STEP_TARGET_S, SimulatedDevice
from simulation.drafts import SimulatedDrafts
from simulation.roofline import STEP_TOKENS, roofline_device

MEDUSA_HEADS = 5
"""Number of Medusa heads of a simulated model, as the paper's authors trained them (Cai et al., 2024)."""


class SimulatedModel(NamedTuple):
    """A model's figures, from its config alone."""

    size: ModelSize
    shape: ModelShape
    head_weights: float  # weights from hidden state to logits
    layer_weights: float  # weights of a layer that each token is multiplied by
    weight_bytes: float  # bytes of a layer's weight
    hidden: float  # values of a token's state
    adapter_values: float  # values of an adapter of rank 1; 0: unknown


def read_model(model: str, option: str, formats: MemoryOptions) -> SimulatedModel:
    """Reads a model's figures. Raises `ConfigError` for a model without a config."""
    directory = locate(model, patterns=("*.json",), weights=False)
    if not (Path(directory) / "config.json").is_file():
        raise ConfigError(option, model, "has no config.json, which says how large the model is")
    size, config = known_size(Path(directory), option, model, formats.quantization), text_config(directory)
    counts, layers = weight_counts(config), max(1, size.attention.layers)
    return SimulatedModel(
        size=size,
        shape=model_shape(size, formats.quantization, formats.kv_dtype),
        head_weights=counts.table,
        layer_weights=counts.met / layers,
        weight_bytes=max(0.5, (size.weights_bytes - 2 * counts.table) / counts.stored) if counts.stored else 2.0,
        hidden=number(config, "hidden_size"),
        adapter_values=adapter_values(config),
    )


class RooflineWorkers:
    """Workers of one model on GPUs by their data sheets."""

    def __init__(self, options: SimulateConfig) -> None:
        """Raises `ConfigError` for a model or a draft model that cannot be read."""
        self._options = options
        self._features = options.features
        self._model = read_model(options.model, "--model", options.features)
        self._draft = self._draft_shape()
        self._ranks = self._features.adapter_ranks()
        if self._ranks and not self._model.adapter_values:
            raise ConfigError(
                "--lora", self._features.lora[0], "adapters of a model with experts or MLA are not priced"
            )

    def device(self, role: Role, gpu: str) -> SimulatedDevice:
        """Raises `ConfigError` for a width that does not divide the model, and if no KV fits beside the weights."""
        options, features, rates = self._options, self._features, DEVICES[gpu].rates
        copy = capacity_of(DEVICES[gpu], self._model.size, self._model.shape, self._width(role, gpu))
        tokens = options.kv_tokens or self._pool(copy, role).pool_tokens
        if tokens < 2 * options.block_tokens:
            raise ConfigError(
                "--gpu", gpu, f"{options.model} leaves it no room for KV; --tensor-parallel 0 finds a width"
            )
        device = roofline_device(
            gpu, copy, factor=options.factor, step_tokens=options.step_tokens or STEP_TOKENS
        ).with_pool(tokens, options.block_tokens)
        values = self._model.adapter_values * max(self._ranks.values(), default=0)

        def adapted(rows: int, adapters: int) -> float:
            return options.factor * adapter_seconds(values, rows, adapters, rates.together(copy.gpus))

        device = structs.replace(
            device,
            seconds=self._with_eagle_store(device.seconds, copy),
            token_bytes=device.token_bytes + (round(self._eagle_layer().token_bytes) if self._stores else 0),
            step_target_s=options.step_ms / 1000 or STEP_TARGET_S,
            drafts=self._drafts(copy) if role == "decode" else None,
            adapters=SimulatedAdapters(tuple(self._ranks), adapted),
        )
        return _with_host_tier(device, features, DEVICES[gpu].links.host * copy.gpus)

    @property
    def _stores(self) -> bool:
        """Whether workers of both roles store KV of an EAGLE head beside the model's, which handoffs carry, too."""
        return self._features.proposing == "eagle"

    def _with_eagle_store(self, seconds: Callable[[StepWork], float], copy: Capacity) -> Callable[[StepWork], float]:
        """Returns the seconds of steps in which the head's layer computes the KV of prompts, too."""
        if not self._stores:
            return seconds
        layer = structs.replace(copy, model=self._eagle_layer(), sums=SumCosts())

        def with_store(work: StepWork) -> float:
            stored = self._options.factor * layer.seconds(structs.replace(work, rows=0)) if work.prompt_tokens else 0.0
            return seconds(work) + stored

        return with_store

    def _width(self, role: Role, gpu: str) -> int:
        features, size, most = self._features, self._model.size, DEVICES[gpu].links.host_devices
        width = features.asked_width(role)
        if not width:
            return least_width(size, DEVICES[gpu].rates, size.max_tokens, most)
        if not size.attention.divides_among(width):
            raise ConfigError(
                "--tensor-parallel", width, f"does not divide the {size.heads} heads of {self._options.model}"
            )
        return width

    def _draft_shape(self) -> ModelShape | None:
        """Returns the shape of a pass for draft tokens: a draft model, EAGLE's layer and head, or Medusa's heads."""
        kind, model, options = self._features.proposing, self._model, self._options
        if kind == "medusa":
            # Each head has a block of hidden x hidden and output weights, and nothing of attention.
            return self._part(MEDUSA_HEADS * (model.hidden**2 + model.head_weights), 0)
        if kind == "draft":
            draft = self._features.draft_model
            return read_model(draft, "--draft-model", options.features).shape
        if kind != "eagle":
            return None
        return self._part(self._eagle_layer().parameters + model.head_weights, 1)

    def _eagle_layer(self) -> ModelShape:
        """Returns the layer of an EAGLE head, which reads a token's embedding and the state before it."""
        return self._part(self._model.layer_weights + 2 * self._model.hidden**2, 1)

    def _part(self, weights: float, layers: int) -> ModelShape:
        """Returns a shape with this number of weights, and attention and KV of some of the model's layers."""
        shape, share = self._model.shape, layers / max(1, self._model.size.attention.layers)
        return structs.replace(
            shape,
            parameters=weights,
            weights_bytes=weights * self._model.weight_bytes,
            token_bytes=shape.token_bytes * share,
            pair_width=shape.pair_width * share,
        )

    def _drafts(self, copy: Capacity) -> SimulatedDrafts | None:
        features, draft = self._features, self._draft
        if features.proposing == "none":
            return None
        pass_seconds = None
        if draft is not None:
            # A draft model is rank 0's alone; EAGLE's layer is divided as the model is.
            whole = features.proposing == "draft"
            of_draft = Capacity(draft, copy.gpu, copy.usable_share, 1 if whole else copy.gpus)

            def pass_seconds(work: StepWork) -> float:
                return self._options.factor * of_draft.seconds(work)

        return SimulatedDrafts(
            most=features.draft_tokens,
            acceptance=features.acceptance_rate,
            pass_seconds=pass_seconds,
            stores=self._stores,
            heads=MEDUSA_HEADS if features.proposing == "medusa" else 0,
        )

    def _pool(self, copy: Capacity, role: Role) -> Capacity:
        """Returns the copy with all that takes memory beside its weights: weights and KV for drafting, and adapters."""
        shape, draft = copy.model, self._draft if role == "decode" or self._stores else None
        kept = self._features.max_loras * self._model.adapter_values * max(self._ranks.values(), default=0)
        weights = shape.weights_bytes + kept * ADAPTER_VALUE_BYTES
        token = shape.token_bytes
        if draft is not None:
            weights += draft.weights_bytes
            token += draft.token_bytes
        return structs.replace(copy, model=structs.replace(shape, weights_bytes=weights, token_bytes=token))


def calibrated_device(options: SimulateConfig, calibration: Calibration, role: Role) -> SimulatedDevice:
    """Returns a device with the costs that real workers of this role have measured."""
    worker, features = calibration.of(role), options.features
    device = SimulatedDevice(
        name=calibration.device,
        pause_s=calibration.pause_ms / 1000,
        seconds=worker.costs.seconds,
        costs=worker.costs,
        token_bytes=worker.token_bytes,
        blocks=0,
        step_tokens=options.step_tokens or worker.costs.most_tokens or STEP_TOKENS,
        step_target_s=options.step_ms / 1000 or worker.costs.target or STEP_TARGET_S,
    ).with_pool(options.kv_tokens or worker.kv_tokens, options.block_tokens)
    drafts = None
    if role == "decode" and features.proposing == "ngram":
        drafts = SimulatedDrafts(most=features.draft_tokens, acceptance=features.acceptance_rate)
    return _with_host_tier(structs.replace(device, drafts=drafts), features, 0.0)


def _with_host_tier(device: SimulatedDevice, features: FeatureOptions, link: float) -> SimulatedDevice:
    """Returns the device with blocks in host memory; `link`: bytes per second to that memory by the data sheet.

    Raises `ConfigError` for memory that holds no block.
    """
    memory, block_bytes = features.host_kv_memory, device.token_bytes * device.block_tokens
    if not memory:
        return device
    if memory < block_bytes:
        raise ConfigError("--host-kv-memory", format_bytes(memory), f"a KV block takes {format_bytes(block_bytes)}")
    rate = features.host_gb_per_s * 1e9 or link
    return structs.replace(device, host_blocks=memory // block_bytes, host_bytes_per_s=rate)
