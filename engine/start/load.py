"""Loads an engine: device, model, measurements, KV pool, recorded steps. What cannot be is refused by name."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec import structs

from contracts.kv.spec import KVSpec
from engine.device import device_errors, device_label, dtype_name
from engine.executor import Engine
from engine.kv.host_tier import HostTier
from engine.model.config import TextModel
from engine.model.formats.registry import open_checkpoint
from engine.model.quantized import Form
from engine.model.weights import Checkpoint
from engine.speculation.proposers.model_proposer import ModelProposer
from engine.start.block_counts import Counts, Texts, bytes_of_counts, longest_in, sequences_in, tokens_in
from engine.start.load_draft import load_draft
from engine.start.load_medusa import load_medusa
from engine.start.load_model import load_model
from engine.start.loaded_model import LoadedModel
from engine.start.profiling import host_rate, prompt_steps
from engine.start.sizing import (
    blocks_that_fit,
    host_slots,
    step_tokens,
)
from infra.config.engine import EngineConfig
from infra.config.speculation import proposing
from infra.process.status import Progress
from infra.redis.records import Memory
from infra.sizes import format_bytes
from pricing.rates import Rates
from pricing.seed import seeded
from pricing.steps import StepCosts

LOG = logging.getLogger(__name__)

FEW_GUESSES = 7
"""Guesses of a sequence that recorded steps have room for, where it is open how many come."""


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
    proposer: ModelProposer | None = None  # guesses tokens behind the sampler; None: nobody does there
    tree: tuple[int, ...] = ()  # of each of its guesses, in order, the one that it goes on from; empty: the one before


def load_engine(
    config: EngineConfig, progress: Progress, open_weights: Callable[[Path], Checkpoint] = open_checkpoint
) -> LoadedEngine:
    """Loads the model and makes the pool, reporting stages and percent.

    `open_weights` gives the tensors of the model's directory. Raises `ModelError` for a model that is missing, broken
    or not supported, `ConfigError` for settings that do not fit it or this machine, `DeviceError` if the device fails.
    """
    loaded = load_model(config, progress, open_weights)
    backend, device, spec, longest = loaded.backend, loaded.backend.device, loaded.spec, loaded.config.max_model_len
    config = structs.replace(config, max_batch_tokens=step_tokens(config, device))
    draft = load_draft(config, loaded, progress, open_weights) if proposing(config) == "draft" else None
    medusa = load_medusa(config.medusa, loaded, progress) if proposing(config) == "medusa" else None
    progress("profiling", 0.0)
    measured = prompt_steps(config, longest, device, len(spec.groups), loaded.with_pool)
    progress("making the KV pool", 0.0)
    texts = Texts(longest, under_way=backend.launch_depth * config.max_batch_tokens)
    kept = loaded.adapters.reserved_bytes() if loaded.adapters is not None else 0
    sized = spec
    if draft is not None:
        draft.warm_up()
        sized, kept = draft.with_blocks_of(spec), kept + draft.own_bytes()
    counts = blocks_that_fit(config, sized, device, texts, kept)
    tier = _make_tier(config, spec, device, bytes_of_counts(sized, counts))
    engine = loaded.with_pool(counts, tier)
    pool, slots = engine.pool, tier.slots if tier is not None else 0
    pool.begin()
    model_config = _shortened(loaded.config, longest_in(spec, texts, counts))
    texts = structs.replace(texts, longest=model_config.max_model_len)
    rates = Rates(measured[-1].tokens / measured[-1].seconds, host_rate(engine, slots))
    memory = _memory(loaded, counts, texts, tier, rates)
    if draft is not None:
        weights, pool_bytes = memory.weights_bytes + draft.weights_bytes(), bytes_of_counts(sized, counts)
        memory = structs.replace(memory, weights_bytes=weights, kv_pool_bytes=pool_bytes + draft.own_bytes())
    if medusa is not None:
        memory = structs.replace(memory, weights_bytes=memory.weights_bytes + medusa.weights_bytes())
    model_layers = len(model_config.layers)
    decode_steps = None
    if config.decode_graphs == "on" and loaded.is_ours and loaded.head is None:  # its states are in no recorded step
        most = min(config.max_sequences, config.max_batch_tokens)
        guesses = 0 if proposing(config) == "none" else config.speculative_tokens or FEW_GUESSES
        with torch.inference_mode(), device_errors():
            decode_steps = backend.decode_steps(loaded.model, model_config, pool.layers, most, progress, guesses)
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
        costs=seeded(measured, loaded.parameters, loaded.model.weights_bytes(), memory.token_bytes, model_layers),
        memory=memory,
        follower=engine.follower,
        tree=medusa.tree.parents if medusa is not None else (),
        proposer=medusa or (engine.follower if draft is None else draft.proposer(counts, model_config)),
    )
    _log(ready, config)
    return ready


def _make_tier(config: EngineConfig, spec: KVSpec, device: torch.device, pool_bytes: int) -> HostTier | None:
    slots = host_slots(config, spec, pool_bytes if device.type != "cuda" else 0)
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
