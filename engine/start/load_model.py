"""Loads a model: by our own transformer if its family is known, else by transformers' own code."""

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from msgspec import structs

from checkpoints.gguf.unpacking import GGUF_INDEX
from checkpoints.model_location import CODE_PATTERNS, DESCRIPTION_PATTERNS, locate
from checkpoints.pooling import is_bidirectional, longest_text, read_pooling
from contracts.errors import ConfigError, ModelError, OptionError
from contracts.pooling import Pooling
from engine.backends.choice import serves_natively
from engine.device import choose_device, choose_dtype, use_device
from engine.model.checkpoint.read_config import read_config
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import ModelConfig
from engine.model.config_files import read_json
from engine.model.families.registry import served_architecture
from engine.parallel.rank_group import ONE_RANK, RankGroup
from engine.start.load_family import LoadRequest, load_family_model
from engine.start.loaded_model import LoadedModel
from engine.start.sizing import refuse_impossible
from infra.config.engine import EngineConfig
from infra.config.speculation import proposing
from infra.process.status import Progress

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
    patterns = DESCRIPTION_PATTERNS + CODE_PATTERNS if config.trust_remote_code else DESCRIPTION_PATTERNS
    directory = locate(config.model, progress, patterns)
    progress("reading the config", 0.0)
    pooling = read_pooling(directory, config)
    if pooling is not None:
        _refuse_beside_pooling(config, group)
    model_config = _family_config(config, directory, pooling)
    if isinstance(model_config, ModelConfig):
        request = LoadRequest(config, directory, device, dtype, progress, open_weights, group, pooling)
        return load_family_model(request, model_config)
    reason = model_config
    if pooling is None:
        _refuse_beside_wrapped(config, group, reason)
        return _load_wrapped(config, directory, device, progress, reason)
    if config.adapts:
        raise ConfigError("--lora, --allow-lora-loading", config.model, f"adapters are for our own families: {reason}")
    from engine.start.load_encoder import load_encoder  # loads seconds of transformers

    LOG.info("%s: transformers' own forward pass, of whole texts: %s", directory.name, reason)
    return load_encoder(config, directory, pooling, device, choose_dtype(config.dtype, device), progress)


def _load_wrapped(
    config: EngineConfig, directory: Path, device: torch.device, progress: Progress, reason: OptionError | str
) -> LoadedModel:
    """Loads a model for transformers' own code, which computes it for this `reason`."""
    from engine.start.load_wrapped import load_wrapped  # loads seconds of transformers

    LOG.info("%s: transformers' own forward pass, over our KV pool: %s", directory.name, reason)
    try:
        return load_wrapped(config, directory, device, choose_dtype(config.dtype, device), progress)
    except ModelError as error:
        if not isinstance(reason, OptionError):
            raise
        raise ModelError(f"{reason}; nor does transformers' own code serve it: {error}") from None


def _refuse_beside_wrapped(config: EngineConfig, group: RankGroup, reason: OptionError | str) -> None:
    """Raises `ConfigError` for settings that a model of transformers' own code does not have."""
    if group.is_divided:
        raise ConfigError("tensor_parallel", group.shard.ranks, f"transformers' own code runs on one rank: {reason}")
    if proposing(config) == "eagle":
        where = "cannot draft for a model computed by transformers' own code"
        raise ConfigError("--speculation", "eagle", f"a head that reads hidden states {where}: {reason}")


def _refuse_beside_pooling(config: EngineConfig, group: RankGroup) -> None:
    """Raises `ConfigError` for settings that a model of vectors or scores does not have."""
    if group.is_divided:
        raise ConfigError("tensor_parallel", group.shard.ranks, "a model of vectors or scores runs on one rank")
    if proposing(config) != "none":
        raise ConfigError("speculation", config.speculation, "a model of vectors or scores draws no tokens")


def _family_config(config: EngineConfig, directory: Path, pooling: Pooling | None) -> ModelConfig | OptionError | str:
    """Returns the config of a model of our families, or the reason why transformers' own code computes the model.

    An option that our family lacks is such a reason, too, unless --model-impl is native.
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
