"""Loads a model: by our own transformer if its family is known, else by transformers' own code."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from checkpoints.gguf.unpacking import GGUF_INDEX
from checkpoints.model_location import CODE_PATTERNS, DESCRIPTION_PATTERNS, locate
from checkpoints.pooling import is_bidirectional, longest_text, read_pooling
from contracts.errors import ConfigError, ModelError, OptionError
from contracts.pooling import Pooling
from engine.adapters.slots import AdapterSlots
from engine.backends.choice import choose, serves_natively
from engine.device import choose_device, choose_dtype, use_device
from engine.kv.spec import make_spec
from engine.model.checkpoint.read_config import read_config
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import ModelConfig, computation
from engine.model.config_files import read_json
from engine.model.families.family import ModelNames
from engine.model.families.registry import names_of, served_architecture
from engine.model.layers.adapted import Adapting
from engine.model.layers.linear_factory import LinearFactory
from engine.model.sharding import refuse_width, shard_config
from engine.model.transformer import Transformer
from engine.parallel.rank_group import ONE_RANK, RankGroup
from engine.pooling import Pooler, of_head, of_tokens
from engine.speculation.proposers.eagle_weights import load_head, load_own_head, own_head_config, read_head_config
from engine.start.loaded_model import LoadedModel
from engine.start.sizing import refuse_impossible, refuse_large_weights
from infra.config.engine import EngineConfig
from infra.config.speculation import proposing
from infra.process.status import Progress

CLASSIFIER_HEAD = "score"
"""Name of a causal model's classifier in transformers' checkpoints."""
LOG = logging.getLogger(__name__)


def load_model(
    config: EngineConfig,
    progress: Progress,
    open_weights: Callable[[Path], Checkpoint],
    group: RankGroup = ONE_RANK,
) -> LoadedModel:
    """Loads a model, reporting stages and percent; `open_weights` opens the tensors of its directory.

    Of a model that a `group` of ranks divides, this rank's part is loaded.

    Raises `ModelError` for a model that is missing, broken or not supported, `ConfigError` for settings that do not fit
    it or this machine.
    """
    device = choose_device(config.device)
    use_device(device)
    dtype = choose_dtype(config.dtype, device, widened=serves_natively(config))
    refuse_impossible(config, device)
    directory = locate(
        config.model,
        progress,
        DESCRIPTION_PATTERNS + CODE_PATTERNS if config.trust_remote_code else DESCRIPTION_PATTERNS,
    )
    progress("reading the config", 0.0)
    pooling = read_pooling(directory, config)
    if pooling is not None:
        refuse_beside_pooling(config, group)
    ours = _ours(config, directory, pooling)
    if isinstance(ours, ModelConfig):
        return _load_ours(config, ours, directory, device, dtype, progress, open_weights, group, pooling)
    if pooling is not None:
        if config.adapts:
            raise ConfigError(
                "--lora, --allow-lora-loading", config.model, f"adapters are for our own families: {ours}"
            )
        from engine.start.load_encoder import load_encoder  # loads seconds of transformers

        LOG.info("%s: transformers' own forward pass, of whole texts: %s", directory.name, ours)
        return load_encoder(config, directory, pooling, device, choose_dtype(config.dtype, device), progress)
    if group.is_divided:
        raise ConfigError("tensor_parallel", group.shard.ranks, f"transformers' own code runs on one rank: {ours}")
    if proposing(config) == "eagle":
        where = "cannot draft for a model computed by transformers' own code"
        raise ConfigError("--speculation", "eagle", f"a head that reads hidden states {where}: {ours}")
    from engine.start.load_wrapped import load_wrapped  # loads seconds of transformers

    LOG.info("%s: transformers' own forward pass, over our KV pool: %s", directory.name, ours)
    try:
        own = choose_dtype(config.dtype, device)  # its products are PyTorch's
        return load_wrapped(config, directory, device, own, progress)
    except ModelError as error:
        if not isinstance(ours, OptionError):
            raise
        raise ModelError(f"{ours}; nor does transformers' own code serve it: {error}") from None


def refuse_beside_pooling(config: EngineConfig, group: RankGroup) -> None:
    """Raises `ConfigError` for settings that a model of vectors or scores does not have."""
    if group.is_divided:
        raise ConfigError("tensor_parallel", group.shard.ranks, "a model of vectors or scores runs on one rank")
    if proposing(config) != "none":
        raise ConfigError("speculation", config.speculation, "a model of vectors or scores draws no tokens")


def _ours(config: EngineConfig, directory: Path, pooling: Pooling | None) -> ModelConfig | OptionError | str:
    """Returns the config for our own transformer, or the reason why transformers' own code computes the model.

    An option that our family lacks is such a reason, too, unless --model-impl native asks for ours.
    """
    is_gguf = (directory / GGUF_INDEX).is_file()
    if config.model_impl == "transformers":
        if is_gguf:
            raise ModelError(
                f"--model-impl: 'transformers': {directory.name} is a GGUF file, which only our own code reads"
            )
        return "--model-impl transformers asks for it"
    raw = read_json(directory / "config.json")
    names = raw.get("architectures") or []
    if pooling is not None and is_bidirectional(raw):
        return "each of its tokens sees all others"
    if config.model_impl == "auto" and served_architecture(names) is None:
        return f"{', '.join(map(str, names)) or 'a config without architectures'} is none of ours"
    try:
        if pooling is not None and not config.max_model_len:
            return _shortened(read_config(directory), longest_text(directory))
        return read_config(directory, config.max_model_len)
    except OptionError as error:
        if config.model_impl == "native" or is_gguf:
            raise
        return error


def _shortened(model: ModelConfig, longest: int) -> ModelConfig:
    return structs.replace(model, max_model_len=min(model.max_model_len, longest or model.max_model_len))


def _load_ours(
    config: EngineConfig,
    model_config: ModelConfig,
    directory: Path,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    open_weights: Callable[[Path], Checkpoint],
    group: RankGroup,
    pooling: Pooling | None,
) -> LoadedModel:
    head_config = _head_config(config, model_config)
    with_head = model_config
    if head_config is not None:
        with_head = structs.replace(model_config, layers=model_config.layers + head_config.layers)
    refuse_width(with_head, group.shard.ranks)
    of_rank = shard_config(with_head, group.shard)
    backend = choose(config, device, dtype, of_rank)
    checkpoint = open_weights(directory)
    parameters = checkpoint.parameters()
    embedding = model_config.vocab_size * model_config.hidden_size
    refuse_large_weights(config, parameters, dtype, device, backend.linears.forms, embedding, group.shard.ranks)
    stays = " and ".join(sorted(form for form in parameters if form is not None))
    if stays and config.quantization != "none":
        LOG.info(
            "--quantization %s is for what is not quantized: %s of the checkpoint stay", config.quantization, stays
        )
    names = names_of(model_config).found(checkpoint.holds)
    model_config = _with_own_head(model_config, names, checkpoint)
    if pooling is not None and not pooling.tokens:
        names = structs.replace(names, head="")
    with torch.inference_mode():
        adapting = Adapting(config.max_loras, config.max_lora_rank) if config.adapts else None
        make = LinearFactory(checkpoint, backend.linears, device, dtype, adapting, config.quantization, group)
        model: Transformer[Any] = Transformer(model_config, names, make, backend.layers, progress)
        pooler = None if pooling is None else _pooler(pooling, checkpoint, model, model_config.hidden_size)
        digest_of_head, head = "", None
        if head_config is not None and config.eagle:
            of_head = open_weights(Path(config.eagle))
            head = load_head(head_config, model, of_head, backend, len(model_config.layers), group)
            digest_of_head = of_head.digest()
        elif head_config is not None:
            head = load_own_head(head_config, model, checkpoint, backend, len(model_config.layers), group)
    is_headless = model_config.tied_head or not names.head
    unused = (".rotary_emb.inv_freq", "lm_head.weight") if is_headless else (".rotary_emb.inv_freq",)
    behind = range(len(model_config.layers), len(model_config.layers) + model_config.left_out)
    checkpoint.refuse_unused(unused, (*names.ignored, *(f"{names.layer.format(index)}." for index in behind)))
    progress("hashing weights", 0.0)
    digest = checkpoint.digest(computation(model_config) + config.quantization.encode())
    spec, whole_spec = [
        make_spec(each, dtype, config.block_size, digest + digest_of_head, config.kv_dtype)
        for each in (of_rank, with_head)
    ]
    if [each.layers for each in spec.groups] != [each.layers for each in whole_spec.groups]:
        raise ConfigError("tensor_parallel", group.shard.ranks, "KV of different layers would be alike on a rank")
    adapters = None
    if config.adapts:
        adapters = AdapterSlots(make.places, config.max_loras, config.max_lora_rank, device, dtype)
    forms = tuple(form for form, _ in make.quantized.most_common())
    return LoadedModel(
        backend,
        model,
        of_rank,
        spec,
        parameters.total(),
        adapters=adapters,
        forms=forms,
        head=head,
        most_sequences=config.max_sequences,
        group=group,
        whole_spec=whole_spec if group.is_divided else None,
        pooler=pooler,
    )


def _pooler(pooling: Pooling, checkpoint: Checkpoint, model: Transformer[Any], hidden: int) -> Pooler:
    """Makes what pools the states of our transformer, whose attention is causal. Raises `ModelError`."""
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
