"""Loads an engine: device, model, measurements, KV pool, recorded steps. What cannot be is refused by name."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from core.config import EngineConfig
from core.costs.rates import Rates
from core.costs.seed import seeded
from core.costs.steps import StepCosts
from core.errors import ConfigError, ModelError, OptionError
from core.gguf.unpacking import PLACES
from core.kv.spec import KVSpec
from core.model_location import CODE, WHOLE_MODEL, locate
from core.process.status import Progress
from core.redis.records import Memory
from core.sizes import format_bytes
from core.speculation import proposing
from engine.adapters.slots import AdapterSlots
from engine.backends.choice import choose, serves_natively
from engine.device import choose_device, choose_dtype, device_errors, device_label, dtype_name, use_device
from engine.executor import Engine
from engine.kv.host_tier import HostTier
from engine.kv.spec import make_spec
from engine.model.adapted import Adapting
from engine.model.config import ModelConfig, TextModel, computation
from engine.model.config_files import read_json
from engine.model.families.registry import SUPPORTED, names_of
from engine.model.formats.registry import open_checkpoint
from engine.model.linear import LinearFactory
from engine.model.quantized import Form
from engine.model.read_config import read_config
from engine.model.transformer import Transformer
from engine.model.weights import Checkpoint
from engine.speculation.eagle_weights import load_head, load_own_head, own_head_config, read_head_config
from engine.start.block_counts import Counts, Texts, bytes_of_counts, longest_in, sequences_in, tokens_in
from engine.start.loaded_model import LoadedModel
from engine.start.profiling import host_rate, prompt_steps
from engine.start.sizing import (
    blocks_that_fit,
    host_slots,
    refuse_impossible,
    refuse_large_weights,
    step_tokens,
)

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedEngine(Engine):
    """Adds to an engine that is ready to serve what its start has found out."""

    parameters: int  # values in the model's weights
    forms: tuple[Form, ...]  # that weights are quantized in, the largest part first
    step_tokens: int  # at most
    host_slots: int  # blocks that the host tier holds; 0: there is none
    rates: Rates
    costs: StepCosts  # of steps, as far as the start has measured them
    memory: Memory


def load_engine(
    config: EngineConfig, progress: Progress, open_weights: Callable[[Path], Checkpoint] = open_checkpoint
) -> LoadedEngine:
    """Loads the model and makes the pool, reporting stages and percent.

    `open_weights` gives the tensors of the model's directory. Raises `ModelError` for a model that is missing, broken
    or not supported, `ConfigError` for settings that do not fit it or this machine, `DeviceError` if the device fails.
    """
    loaded = _load_model(config, progress, open_weights)
    backend, device, spec, longest = loaded.backend, loaded.backend.device, loaded.spec, loaded.config.max_model_len
    config = structs.replace(config, max_batch_tokens=step_tokens(config, device))
    progress("profiling", 0.0)
    measured = prompt_steps(config, longest, device, len(spec.groups), loaded.with_pool)
    progress("making the KV pool", 0.0)
    texts = Texts(longest, under_way=backend.launch_depth * config.max_batch_tokens)
    kept = loaded.adapters.reserved_bytes() if loaded.adapters is not None else 0
    counts = blocks_that_fit(config, spec, device, texts, kept)
    tier = _make_tier(config, spec, device, counts)
    engine = loaded.with_pool(counts, tier)
    pool, slots = engine.pool, tier.slots if tier is not None else 0
    for group in range(len(spec.groups)):
        pool.enter(group, torch.zeros(1, dtype=torch.int64))  # what the first requests will use
    model_config = _shortened(loaded.config, longest_in(spec, texts, counts))
    texts = structs.replace(texts, longest=model_config.max_model_len)
    rates = Rates(measured[-1].tokens / measured[-1].seconds, host_rate(engine, slots))
    memory = _memory(loaded, counts, texts, tier, rates)
    model_layers = len(model_config.layers)
    decode_steps = None
    if config.decode_graphs == "on" and loaded.is_ours and loaded.head is None:  # its states are in no recorded step
        most = min(config.max_sequences, config.max_batch_tokens)
        with torch.inference_mode(), device_errors():
            decode_steps = backend.decode_steps(loaded.model, model_config, pool.layers, most, progress)
    ready = LoadedEngine(
        backend=backend,
        model=loaded.model,
        model_config=model_config,
        pool=pool,
        attention=engine.attention,
        launch_depth=engine.launch_depth,
        decode_steps=decode_steps,
        adapters=loaded.adapters,
        parameters=loaded.parameters,
        forms=loaded.forms,
        step_tokens=config.max_batch_tokens,
        host_slots=slots,
        rates=rates,
        costs=seeded(measured, loaded.parameters, memory.weights_bytes, memory.token_bytes, model_layers),
        memory=memory,
        follower=engine.follower,
    )
    _log(ready, config)
    return ready


def _load_model(config: EngineConfig, progress: Progress, open_weights: Callable[[Path], Checkpoint]) -> LoadedModel:
    device = choose_device(config.device)
    use_device(device)
    dtype = choose_dtype(config.dtype, device, widened=serves_natively(config))
    refuse_impossible(config, device)
    directory = locate(config.model, progress, WHOLE_MODEL + CODE if config.trust_remote_code else WHOLE_MODEL)
    progress("reading the config", 0.0)
    ours = _ours(config, directory)
    if isinstance(ours, ModelConfig):
        return _load_ours(config, ours, directory, device, dtype, progress, open_weights)
    if proposing(config) == "eagle":
        where = "guesses nothing for what transformers' own code computes"
        raise ConfigError("--speculation", "eagle", f"a head that reads hidden states {where}: {ours}")
    if config.adapts:
        where = "are not added to what transformers' own code computes"
        raise ConfigError("--lora, --allow-lora-loading", config.model, f"adapters {where}: {ours}")
    from engine.start.load_wrapped import load_wrapped  # loads seconds of transformers

    LOG.info("%s: transformers' own forward pass, over our KV pool: %s", directory.name, ours)
    try:
        own = choose_dtype(config.dtype, device)  # its products are PyTorch's
        return load_wrapped(config, directory, device, own, progress)
    except ModelError as error:
        if not isinstance(ours, OptionError):
            raise
        raise ModelError(f"{ours}; nor does transformers' own code serve it: {error}") from None


def _ours(config: EngineConfig, directory: Path) -> ModelConfig | OptionError | str:
    """Reads the config of a model of one of our families, or returns why transformers' own code computes it.

    That is so where a family of ours lacks an option, too, unless ours alone is asked for.
    """
    is_gguf = (directory / PLACES).is_file()
    if config.model_impl == "transformers":
        if is_gguf:
            raise ModelError(
                f"--model-impl: 'transformers': {directory.name} is a GGUF file, which only our own code reads"
            )
        return "--model-impl transformers asks for it"
    names = read_json(directory / "config.json").get("architectures") or []
    if config.model_impl == "auto" and not (len(names) == 1 and names[0] in SUPPORTED):
        return f"{', '.join(map(str, names)) or 'a config without architectures'} is none of ours"
    try:
        return read_config(directory, config.max_model_len)
    except OptionError as error:
        if config.model_impl == "native" or is_gguf:
            raise
        return error


def _load_ours(
    config: EngineConfig,
    model_config: ModelConfig,
    directory: Path,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    open_weights: Callable[[Path], Checkpoint],
) -> LoadedModel:
    """Loads a model of one of our families, and its head that guesses hidden states, if there is to be one."""
    head_config = _head_config(config, model_config)
    with_head = model_config
    if head_config is not None:
        with_head = structs.replace(model_config, layers=model_config.layers + head_config.layers)
    backend = choose(config, device, dtype, with_head)
    checkpoint = open_weights(directory)
    parameters = checkpoint.parameters()
    embedding = model_config.vocab_size * model_config.hidden_size
    refuse_large_weights(config, parameters, dtype, device, backend.linears.forms, embedding)
    stays = " and ".join(sorted(form for form in parameters if form is not None))
    if stays and config.quantization != "none":
        LOG.info(
            "--quantization %s is for what is not quantized: %s of the checkpoint stay", config.quantization, stays
        )
    names = names_of(model_config)
    with torch.inference_mode():
        adapting = Adapting(config.max_loras, config.max_lora_rank) if config.adapts else None
        make = LinearFactory(checkpoint, backend.linears, device, dtype, adapting, config.quantization)
        model: Transformer[Any] = Transformer(model_config, names, make, backend.layers, progress)
        digest_of_head, head = "", None
        if head_config is not None and config.eagle:
            of_head = open_weights(Path(config.eagle))
            head = load_head(head_config, model, of_head, backend, len(model_config.layers))
            digest_of_head = of_head.digest()
        elif head_config is not None:
            head = load_own_head(head_config, model, checkpoint, backend, len(model_config.layers))
    unused = (".rotary_emb.inv_freq", "lm_head.weight") if model_config.tied_head else (".rotary_emb.inv_freq",)
    behind = range(len(model_config.layers), len(model_config.layers) + model_config.left_out)
    checkpoint.refuse_unused(unused, (*names.ignored, *(f"{names.layer.format(index)}." for index in behind)))
    progress("hashing weights", 0.0)
    digest = checkpoint.digest(computation(model_config) + config.quantization.encode())
    spec = make_spec(with_head, dtype, config.block_size, digest + digest_of_head, config.kv_dtype)
    adapters = None
    if config.adapts:
        adapters = AdapterSlots(make.places, config.max_loras, config.max_lora_rank, device, dtype)
    forms = tuple(form for form, _ in make.quantized.most_common())
    return LoadedModel(
        backend,
        model,
        with_head,
        spec,
        parameters.total(),
        adapters=adapters,
        forms=forms,
        head=head,
        most_sequences=config.max_sequences,
    )


def _head_config(config: EngineConfig, model: ModelConfig) -> ModelConfig | None:
    """Returns the config of the head that is to guess hidden states; None: nobody has asked for one.

    Raises `ModelError` where there is none, or it is none of this model.
    """
    if proposing(config) != "eagle":
        return None
    return read_head_config(Path(config.eagle), model) if config.eagle else own_head_config(model)


def _make_tier(config: EngineConfig, spec: KVSpec, device: torch.device, counts: Counts) -> HostTier | None:
    on_host = bytes_of_counts(spec, counts) if device.type != "cuda" else 0
    slots = host_slots(config, spec, on_host)
    return HostTier(slots, spec.groups[0], device, config.host_kv_directory) if slots else None


def _shortened(config: TextModel, fits: int) -> TextModel:
    """Bounds texts by the tokens that the pool holds: a model may take longer ones than this machine has room for."""
    own = config.max_model_len
    if fits < own:
        LOG.warning("texts of up to %d tokens fit, the model takes %d; --kv-memory makes room", fits, own)
    return structs.replace(config, max_model_len=min(own, fits))


def _memory(loaded: LoadedModel, counts: Counts, texts: Texts, tier: HostTier | None, rates: Rates) -> Memory:
    spec = loaded.spec
    return Memory(
        weights_bytes=loaded.model.weights_bytes(),
        kv_pool_bytes=bytes_of_counts(spec, counts),
        host_tier_bytes=tier.bytes if tier is not None else 0,
        token_bytes=spec.token_bytes(),
        tokens=tokens_in(spec, counts),
        sequences=sequences_in(spec, texts, counts),
        prompt_tokens_per_second=rates.prompt_tokens_per_second,
        host_bytes_per_second=rates.host_bytes_per_second,
    )


def _log(engine: LoadedEngine, given: EngineConfig) -> None:
    memory, config, backend = engine.memory, engine.model_config, engine.backend
    quantized = f", {' and '.join(engine.forms)} weights" if engine.forms else ""
    missing = [form for form in engine.forms if form not in backend.linears.forms]
    if missing:
        what = (
            f"multiply {' and '.join(missing)} weights as the {dtype_name(backend.dtype)} numbers that they stand for"
        )
        LOG.info("%s operators %s, in the memory of those", backend.name, what)
    tier = "no host tier"
    if memory.host_tier_bytes:
        speed = format_bytes(memory.host_bytes_per_second)
        tier = f"host tier {format_bytes(memory.host_tier_bytes)} ({engine.host_slots} blocks) at {speed}/s"
    LOG.info(
        f"{config.name} on {device_label(backend.device)} in {dtype_name(backend.dtype)}{quantized},"
        f" {backend.name} operators:"
        f" weights {format_bytes(memory.weights_bytes)},"
        f" KV pool {format_bytes(memory.kv_pool_bytes)} in {engine.pool.spec.dtype}"
        f" ({' and '.join(map(str, engine.pool.counts))} blocks of {given.block_size} tokens,"
        f" {format_bytes(memory.token_bytes)} per token)"
        f" for {memory.tokens} tokens or {memory.sequences} sequences of {config.max_model_len}, {tier};"
        f" {memory.prompt_tokens_per_second:.0f} prompt tokens/s"
    )
