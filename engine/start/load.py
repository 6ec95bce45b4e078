"""Loads an engine: device, model, proposer, measurements, KV pool, recorded decode steps."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from engine.device import device_label, dtype_name
from engine.engine import Engine
from engine.kv.host.host_tier import HostTier
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import TextModel
from engine.model.open_checkpoint import open_checkpoint
from engine.model.quantized import Form
from engine.parallel.peers import NO_PEERS, Peers
from engine.parallel.rank_group import ONE_RANK, RankGroup
from engine.pooling import Pooler
from engine.speculation.proposers.model_proposer import ModelProposer
from engine.start.block_counts import Counts, PoolLoad, bytes_of_counts, longest_in, sequences_in, tokens_in
from engine.start.device_memory import device_memory
from engine.start.load_model import load_model
from engine.start.loaded_model import LoadedModel
from engine.start.profiling import host_rate, prompt_steps
from engine.start.proposers.load_proposer import LoadedProposer, load_proposer
from engine.start.recording import record_decode_steps
from engine.start.sizing import blocks_that_fit, cpu_spare, host_slots, step_tokens
from engine.start.step_contrasts import step_contrasts
from infra.config.engine import EngineConfig
from infra.process.status import Progress
from infra.redis.records import Memory
from infra.sizes import format_bytes
from pricing.rates import StartRates
from pricing.step_costs.seed import seeded
from pricing.step_costs.steps import StepCosts

COUNTING_BLOCKS_BYTES = 32 << 20
"""Memory of the blocks that only count tokens: a quarter of a million tokens wait and run at once."""
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedEngine(Engine):
    """An engine that is ready to serve, with its sizes and measurements."""

    parameters: int  # values in the model's weights
    forms: tuple[Form, ...]  # quantization formats of the weights, largest share first
    step_tokens: int  # token budget of a step
    host_slots: int  # blocks of the host tier; 0 without a tier
    rates: StartRates
    costs: StepCosts  # as far as the start has measured them
    memory: Memory
    proposer: ModelProposer | None = None
    tree: tuple[int, ...] = ()  # parent of each draft token, if a proposer drafts a tree


def load_engine(
    config: EngineConfig,
    progress: Progress,
    open_weights: Callable[[Path], Checkpoint] = open_checkpoint,
    group: RankGroup = ONE_RANK,
    peers: Peers = NO_PEERS,
    *,
    shares_pool: bool = False,
) -> LoadedEngine:
    """Loads the model, measures prompt steps, makes the KV pool and records decode steps; reports stages and percent.

    `open_weights` opens the tensors of the model's directory. With `shares_pool`, prefill workers of this host may
    write KV into a CPU's pool. Raises `ModelError` for a model that is missing, broken or not supported, `ConfigError`
    for settings that do not fit it or this machine, `DeviceError` if the device fails.

    Of a model that a `group` of ranks divides, this is rank 0; `peers` are the other ranks, which follow its steps.
    """
    loaded = replace(load_model(config, progress, open_weights, group), peers=peers)
    device, spec, longest = loaded.backend.device, loaded.spec, loaded.config.max_model_len
    config = _settings_of_rank(config, loaded)
    proposer = load_proposer(config, loaded, progress, open_weights)
    progress("profiling", 0.0)
    measured = prompt_steps(config, longest, device, len(spec.groups), loaded.with_pool)

    progress("making the KV pool", 0.0)
    load = PoolLoad(longest, in_flight=loaded.backend.launch_depth * config.max_batch_tokens)
    counts, pool_bytes = _size_pool(config, loaded, proposer, load, progress)
    slots = host_slots(config, spec, pool_bytes if device.type != "cuda" else 0)
    tier = make_tier(config, loaded, slots)
    engine = loaded.with_pool(counts, tier, is_shared=shares_pool)
    engine.pool.begin()

    model_config = _shortened(loaded.config, longest_in(spec, load, counts))
    longest = model_config.max_model_len
    rates = StartRates(measured[-1].tokens / measured[-1].seconds, host_rate(engine, slots))
    peers.record(longest)
    steps = record_decode_steps(config, loaded, engine.pool, longest, progress, proposer.tree)
    engine = replace(engine, model_config=model_config, decode_steps=steps)
    ready = LoadedEngine(
        **vars(engine),
        parameters=loaded.parameters,
        forms=loaded.forms,
        step_tokens=config.max_batch_tokens,
        host_slots=slots,
        rates=rates,
        costs=StepCosts(),
        memory=_memory(loaded, proposer, structs.replace(load, longest=longest), counts, pool_bytes, tier, rates),
        tree=proposer.tree,
        proposer=proposer.begin(engine, counts, model_config, progress),
    )
    progress("measuring steps", 0.0)
    contrasts = step_contrasts(ready, config.max_sequences, config.max_batch_tokens, rates.prompt_tokens_per_second)
    weights_bytes, layers = loaded.model.weights_bytes(), len(model_config.layers)
    costs = seeded(measured, loaded.parameters, weights_bytes, spec.token_bytes(), layers, contrasts)
    ready = replace(ready, costs=costs)
    _log(ready, config)
    return ready


def _settings_of_rank(config: EngineConfig, loaded: LoadedModel) -> EngineConfig:
    """Returns the settings with a step's token budget, and with this rank's share of the memory for KV."""
    device, ranks = loaded.backend.device, loaded.group.shard.ranks
    config = structs.replace(config, max_batch_tokens=step_tokens(config, device))
    if loaded.pooler is not None:
        config = _settings_of_pooled(config, loaded, loaded.pooler)
    if not loaded.group.is_divided:
        return config
    # On a CPU the blocks of all ranks are in this machine's memory.
    of_all_ranks = config.kv_memory or (cpu_spare() if device.type == "cpu" else 0)
    return structs.replace(config, kv_memory=of_all_ranks // ranks, host_kv_memory=config.host_kv_memory // ranks)


def _settings_of_pooled(config: EngineConfig, loaded: LoadedModel, pooler: Pooler) -> EngineConfig:
    """Returns the settings of an engine that draws no tokens. A step holds a whole text, if the method needs it."""
    if pooler.whole:
        config = structs.replace(config, max_batch_tokens=max(config.max_batch_tokens, loaded.config.max_model_len))
    if loaded.is_wrapped:  # an encoder, which stores nothing in its blocks
        config = structs.replace(config, kv_memory=COUNTING_BLOCKS_BYTES, host_kv_memory=0)
    return structs.replace(config, decode_graphs="off")


def _size_pool(
    config: EngineConfig, loaded: LoadedModel, proposer: LoadedProposer, load: PoolLoad, progress: Progress
) -> tuple[Counts, int]:
    kept = loaded.adapters.reserved_bytes() if loaded.adapters is not None else 0
    kept += proposer.own_kv_bytes
    kept += proposer.warm_up(progress)  # takes the memory of the draft's steps before the rest is shared out
    device = loaded.backend.device
    if loaded.group.is_divided and device.type == "cuda":  # all ranks have the blocks that fit on the fullest GPU
        kept += max(0, device_memory(device).spare(config.gpu_memory_utilization) - loaded.peers.least_spare())
    spec = proposer.with_kv_of_draft(loaded.spec)
    counts = blocks_that_fit(config, spec, device, load, kept)
    return counts, bytes_of_counts(spec, counts)


def _memory(
    loaded: LoadedModel,
    proposer: LoadedProposer,
    load: PoolLoad,
    counts: Counts,
    pool_bytes: int,
    tier: HostTier | None,
    rates: StartRates,
) -> Memory:
    """Returns the bytes of all ranks' weights and KV, and the tokens that fit, for reports."""
    ranks, spec = loaded.group.shard.ranks, loaded.spec
    return Memory(
        weights_bytes=ranks * loaded.model.weights_bytes() + proposer.weights_bytes,
        kv_pool_bytes=pool_bytes + (ranks - 1) * bytes_of_counts(spec, counts) + proposer.own_kv_bytes,
        host_tier_bytes=ranks * tier.bytes if tier is not None else 0,
        token_bytes=(loaded.whole_spec or spec).token_bytes(),
        tokens=tokens_in(spec, counts),
        sequences=sequences_in(spec, load, counts),
        prompt_tokens_per_second=rates.prompt_tokens_per_second,
        host_bytes_per_second=rates.host_bytes_per_second,
    )


def make_tier(config: EngineConfig, loaded: LoadedModel, slots: int) -> HostTier | None:
    """Makes a rank's part of the host tier. Raises `ConfigError` as `HostTier` does."""
    if not slots:
        return None
    return HostTier(slots, loaded.spec.groups[0], loaded.backend.device, config.host_kv_directory)


def _shortened(config: TextModel, max_tokens: int) -> TextModel:
    own = config.max_model_len
    if max_tokens < own:
        LOG.warning("texts of up to %d tokens fit, the model takes %d; --kv-memory makes room", max_tokens, own)
    return structs.replace(config, max_model_len=min(own, max_tokens))


def _log(engine: LoadedEngine, settings: EngineConfig) -> None:
    memory, config, backend = engine.memory, engine.model_config, engine.backend
    quantized = f", {' and '.join(engine.forms)} weights" if engine.forms else ""
    missing = [form for form in engine.forms if form not in backend.linears.forms]
    if missing:
        what = f"do not multiply {' and '.join(missing)} weights, which are dequantized to {dtype_name(backend.dtype)}"
        LOG.info("%s operators %s", backend.name, what)
    ranks = ""
    if engine.group.is_divided:
        count = engine.group.shard.ranks
        each = format_bytes(memory.weights_bytes // count), format_bytes(memory.kv_pool_bytes // count)
        ranks = f", {count} ranks, each with {each[0]} of the weights and {each[1]} of the KV pool,"
    tier = "no host tier"
    if memory.host_tier_bytes:
        speed = format_bytes(memory.host_bytes_per_second)
        tier = f"host tier {format_bytes(memory.host_tier_bytes)} ({engine.host_slots} blocks) at {speed}/s"
    LOG.info(
        f"{config.name} on {device_label(backend.device)}{ranks} in {dtype_name(backend.dtype)}{quantized},"
        f" {backend.name} operators:"
        f" weights {format_bytes(memory.weights_bytes)},"
        f" KV pool {format_bytes(memory.kv_pool_bytes)} in {engine.pool.spec.dtype}"
        f" ({' and '.join(map(str, engine.pool.counts))} blocks of {settings.block_size} tokens,"
        f" {format_bytes(memory.token_bytes)} per token)"
        f" for {memory.tokens} tokens or {memory.sequences} sequences of {config.max_model_len}, {tier};"
        f" {memory.prompt_tokens_per_second:.0f} prompt tokens/s"
    )
