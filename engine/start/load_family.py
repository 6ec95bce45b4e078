"""Loads a model of one of our families, which `engine.model.transformer` computes, or a rank's shard of it."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from contracts.errors import ConfigError, ModelError
from contracts.kv.spec import KVSpec
from contracts.pooling import Pooling
from engine.adapters.slots import AdapterSlots
from engine.backends.base import Backend
from engine.backends.choice import choose
from engine.kv.spec import make_spec
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import ModelConfig, computation
from engine.model.families.family import ModelNames
from engine.model.families.registry import names_of
from engine.model.layers.adapted import Adapting
from engine.model.layers.linear_factory import LinearFactory
from engine.model.quantized import Form
from engine.model.sharding import refuse_width, shard_config
from engine.model.transformer import Transformer
from engine.parallel.rank_group import ONE_RANK, RankGroup
from engine.pooling import Pooler, of_head, of_tokens
from engine.speculation.proposers.eagle_head import EagleHead
from engine.speculation.proposers.eagle_weights import load_head, load_own_head, own_head_config, read_head_config
from engine.start.loaded_model import LoadedModel
from engine.start.sizing import refuse_large_weights
from infra.config.engine import EngineConfig
from infra.config.speculation import proposing
from infra.process.status import Progress

CLASSIFIER_HEAD = "score"
"""Name of a causal model's classifier in transformers' checkpoints."""
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadRequest:
    """A model to load, and the device and the ranks that will compute it."""

    config: EngineConfig
    directory: Path
    device: torch.device
    dtype: torch.dtype
    progress: Progress
    open_weights: Callable[[Path], Checkpoint]  # opens the tensors of a model's directory
    group: RankGroup = ONE_RANK
    pooling: Pooling | None = None  # of a model of vectors or scores


def load_family_model(request: LoadRequest, model_config: ModelConfig) -> LoadedModel:
    """Loads the model with this config. Raises as `engine.start.load_model.load_model` does."""
    config, group, dtype = request.config, request.group, request.dtype
    head_config = _head_config(config, model_config)
    with_head = model_config
    if head_config is not None:
        with_head = structs.replace(model_config, layers=model_config.layers + head_config.layers)
    refuse_width(with_head, group.shard.ranks)
    of_rank = shard_config(with_head, group.shard)
    backend = choose(config, request.device, dtype, of_rank)
    checkpoint = request.open_weights(request.directory)
    parameters = checkpoint.parameters()
    _refuse_or_log_weights(request, model_config, backend, parameters)
    names = names_of(model_config).found(checkpoint.holds)
    model_config = _with_own_head(model_config, names, checkpoint)
    if request.pooling is not None and not request.pooling.tokens:
        names = structs.replace(names, head="")
    with torch.inference_mode():
        adapting = Adapting(config.max_loras, config.max_lora_rank) if config.adapts else None
        make = LinearFactory(checkpoint, backend.linears, request.device, dtype, adapting, config.quantization, group)
        model: Transformer[Any] = Transformer(model_config, names, make, backend.layers, request.progress)
        pooler = _pooler(request.pooling, checkpoint, model, model_config.hidden_size) if request.pooling else None
        head, head_digest = _load_head(request, head_config, len(model_config.layers), model, checkpoint, backend)
    _refuse_unused(checkpoint, model_config, names)
    request.progress("hashing weights", 0.0)
    digest = checkpoint.digest(computation(model_config) + config.quantization.encode()) + head_digest
    spec = make_spec(of_rank, dtype, config.block_size, digest, config.kv_dtype)
    whole_spec = make_spec(with_head, dtype, config.block_size, digest, config.kv_dtype)
    _refuse_other_groups(spec, whole_spec, group)
    adapters = None
    if config.adapts:
        adapters = AdapterSlots(make.adapter_targets, config.max_loras, config.max_lora_rank, request.device, dtype)
    return LoadedModel(
        backend,
        model,
        of_rank,
        spec,
        parameters.total(),
        adapters=adapters,
        forms=tuple(form for form, _ in make.quantized.most_common()),
        head=head,
        max_sequences=config.max_sequences,
        group=group,
        whole_spec=whole_spec if group.is_divided else None,
        pooler=pooler,
    )


def _refuse_or_log_weights(
    request: LoadRequest, model: ModelConfig, backend: Backend[Any, Any], parameters: Counter[Form | None]
) -> None:
    """Raises `ConfigError` if the weights do not fit into memory; logs which weights --quantization does not change."""
    config, embedding = request.config, model.vocab_size * model.hidden_size
    forms, ranks = backend.linears.forms, request.group.shard.ranks
    refuse_large_weights(config, parameters, request.dtype, request.device, forms, embedding, ranks)
    quantized = " and ".join(sorted(form for form in parameters if form is not None))
    if quantized and config.quantization != "none":
        LOG.info(
            "--quantization %s is for what is not quantized: %s of the checkpoint stay", config.quantization, quantized
        )


def _load_head(
    request: LoadRequest,
    head_config: ModelConfig | None,
    first: int,
    model: Transformer[Any],
    checkpoint: Checkpoint,
    backend: Backend[Any, Any],
) -> tuple[EagleHead[Any] | None, str]:
    """Loads the EAGLE head, if there is one, whose KV is that of layer `first`.

    Returns it, and the digest of a head that has a checkpoint of its own.
    """
    if head_config is None:
        return None, ""
    if not request.config.eagle:
        return load_own_head(head_config, model, checkpoint, backend, first, request.group), ""
    of_head = request.open_weights(Path(request.config.eagle))
    head = load_head(head_config, model, of_head, backend, first, request.group)
    return head, of_head.digest()


def _refuse_unused(checkpoint: Checkpoint, model: ModelConfig, names: ModelNames) -> None:
    is_headless = model.tied_head or not names.head
    suffixes = (".rotary_emb.inv_freq", "lm_head.weight") if is_headless else (".rotary_emb.inv_freq",)
    later_layers = range(len(model.layers), len(model.layers) + model.left_out)
    checkpoint.refuse_unused(suffixes, (*names.ignored, *(f"{names.layer.format(index)}." for index in later_layers)))


def _refuse_other_groups(spec: KVSpec, whole_spec: KVSpec, group: RankGroup) -> None:
    """Raises `ConfigError` if layers whose KV differs in the whole model have the same KV layout on one rank."""
    if [each.layers for each in spec.groups] != [each.layers for each in whole_spec.groups]:
        raise ConfigError("tensor_parallel", group.shard.ranks, "KV of different layers would be alike on a rank")


def _pooler(pooling: Pooling, checkpoint: Checkpoint, model: Transformer[Any], hidden: int) -> Pooler:
    """Makes the pooler of our transformer's states, whose attention is causal. Raises `ModelError`."""
    if pooling.method == "cls":
        raise ModelError("--pooling: 'cls': the first token's state knows nothing of the text in a causal model")
    if pooling.task == "embed":
        return Pooler(structs.replace(pooling, width=hidden))
    if pooling.tokens:
        return Pooler(pooling, of_tokens(model.logits, *pooling.tokens))
    weight = checkpoint.tensor(f"{CLASSIFIER_HEAD}.weight", (1, hidden))
    bias = checkpoint.tensor(f"{CLASSIFIER_HEAD}.bias", (1,)) if checkpoint.holds(f"{CLASSIFIER_HEAD}.bias") else None
    return Pooler(pooling, of_head(weight, bias))


def _with_own_head(config: ModelConfig, names: ModelNames, checkpoint: Checkpoint) -> ModelConfig:
    """Returns the config of a model whose head is not the embedding if the checkpoint has another one.

    Where a config does not say whether they are one tensor, transformers' default may be that they are; it goes by the
    tensors, too.
    """
    held, shape = f"{names.head}.weight", (config.vocab_size, config.hidden_size)
    if not config.tied_head or not checkpoint.holds(held):
        return config
    is_same = torch.equal(checkpoint.tensor(held, shape), checkpoint.tensor(f"{names.embedding}.weight", shape))
    return structs.replace(config, tied_head=is_same)


def _head_config(config: EngineConfig, model: ModelConfig) -> ModelConfig | None:
    """Returns the config of the EAGLE head, or None if speculation does not use one.

    Raises `ModelError` for a head that is missing or another model's.
    """
    if proposing(config) != "eagle":
        return None
    return read_head_config(Path(config.eagle), model) if config.eagle else own_head_config(model)
