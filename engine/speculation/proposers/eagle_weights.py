"""Reads an EAGLE head as it is published, or the layer of a DeepSeek-like checkpoint that predicts further tokens.

A directory has the config of a model of one layer, and these tensors, named as SafeAILab's EAGLE-1 and EAGLE-2 name
them (https://github.com/SafeAILab/EAGLE, `eagle/model/cnets1.py`):

    fc.weight [hidden, 2 x hidden], fc.bias     of the token's embedding, then of the state before it
    layers.0.…                                  a decoder layer, without an input_layernorm
    embed_tokens.weight, lm_head.weight         copies of the model's own, not read

A DeepSeek-like checkpoint with `num_nextn_predict_layers` has, behind its n layers, `model.layers.n.…`: a decoder layer
with `enorm`, `hnorm`, `eh_proj`, `shared_head.norm`, and copies of embedding and head.
"""

from pathlib import Path
from typing import Any

from msgspec import structs

from contracts.errors import ModelError
from engine.backends.base import Backend
from engine.model.checkpoint.read_config import read_config
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import ExpertsMLP, ModelConfig
from engine.model.families.family import ModelNames
from engine.model.families.reading import checked
from engine.model.families.registry import names_of
from engine.model.layers.layer import load_layer
from engine.model.layers.linear_factory import LinearFactory
from engine.model.transformer import Transformer
from engine.parallel.rank_group import RankGroup
from engine.speculation.proposers.eagle_head import EagleHead, HeadNorms

COPIED_TENSORS = ("embed_tokens.", "lm_head.")


def read_head_config(directory: Path, model: ModelConfig) -> ModelConfig:
    """Reads the config of the head in `directory` for `model`.

    Raises `ModelError` if it is missing, not supported, or does not match the model's shape.
    """
    config = read_config(directory)
    for what, own, wanted in (
        ("states", config.hidden_size, model.hidden_size),
        ("tokens", config.vocab_size, model.vocab_size),
    ):
        if own != wanted:
            raise ModelError(f"{directory.name}: an EAGLE head for {own} {what}, but {model.name} has {wanted}")
    if len(config.layers) != 1:
        raise ModelError(f"{directory.name}: an EAGLE head of {len(config.layers)} layers is not supported; 1 is")
    return structs.replace(config, max_model_len=model.max_model_len)


def own_head_config(model: ModelConfig) -> ModelConfig:
    """Returns the config of the multi-token prediction layer after the last layer of `model`.

    Raises `ModelError` if its checkpoint has no such layer, or has contradictory sizes.
    """
    if model.next_layer is None:
        why = "num_nextn_predict_layers names no layer that predicts further tokens; --eagle names a head"
        raise ModelError(f"{model.name}: {why}")
    if isinstance(model.next_layer.mlp, ExpertsMLP):
        checked(model.next_layer.mlp, model.name)
    return structs.replace(model, layers=(model.next_layer,))


def load_head(
    config: ModelConfig,
    model: Transformer[Any],
    checkpoint: Checkpoint,
    backend: Backend[Any, Any],
    first: int,
    group: RankGroup,
) -> EagleHead[Any]:
    """Loads this rank's part of the head with this `config` from a published `checkpoint`.

    Its KV is that of layer `first`.

    Raises `ModelError` for a tensor that is missing, has another shape, or is not expected.
    """
    if checkpoint.holds("midlayer.hidden_norm.weight"):
        raise ModelError(f"{config.name}: an EAGLE-3 head, which reads states of three layers, is not supported")
    hidden = config.hidden_size
    of_layer = names_of(config).of_layer
    if not checkpoint.holds(f"layers.0.{of_layer.attention_norm}.weight"):
        of_layer = structs.replace(of_layer, attention_norm=None)
    names = ModelNames(layer="layers.{}", of_layer=of_layer)
    make: LinearFactory[Any] = LinearFactory(checkpoint, backend.linears, backend.device, backend.dtype, group=group)
    joined = make.linear(["fc"], [hidden], 2 * hidden, checkpoint.holds("fc.bias"))
    layer = load_layer(config, make, names.in_layer(0), 0)
    if checkpoint.holds("embed_tokens.weight"):
        found = checkpoint.shape("embed_tokens.weight")
        if found != (config.vocab_size, hidden):
            shape = list(found)
            raise ModelError(f"{config.name}: embed_tokens.weight has shape {shape}, which is not the model's")
    checkpoint.refuse_unused((".rotary_emb.inv_freq",), COPIED_TENSORS)
    return EagleHead(config, model, joined, None, backend.layers(config, [layer], None, first))


def load_own_head(
    config: ModelConfig,
    model: Transformer[Any],
    checkpoint: Checkpoint,
    backend: Backend[Any, Any],
    first: int,
    group: RankGroup,
) -> EagleHead[Any]:
    """Loads this rank's part of the head after the last layer, number `first` - 1, of the model's own `checkpoint`.

    Raises `ModelError` for a tensor that is missing or has another shape.
    """
    hidden, names = config.hidden_size, names_of(config)
    prefix = names.layer.format(first)
    make: LinearFactory[Any] = LinearFactory(checkpoint, backend.linears, backend.device, backend.dtype, group=group)
    norms = HeadNorms(
        embedding=make.norm(f"{prefix}.enorm", hidden),
        state=make.norm(f"{prefix}.hnorm", hidden),
        logits=make.norm(f"{prefix}.shared_head.norm", hidden),
        eps=config.norm_eps,
    )
    joined = make.linear([f"{prefix}.eh_proj"], [hidden], 2 * hidden)
    layer = load_layer(config, make, names.in_layer(first), 0)
    return EagleHead(config, model, joined, norms, backend.layers(config, [layer], None, first))
