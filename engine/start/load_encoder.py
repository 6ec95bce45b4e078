"""Loads an encoder, or another model of vectors or scores without a family here, for transformers' own code."""

from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from transformers import AutoModel, AutoModelForSequenceClassification

from checkpoints.pooling import is_bidirectional, longest_text
from checkpoints.vocabulary.reading import tokenizer_of
from checkpoints.vocabulary.settings import named_tokens, settings_of
from contracts.errors import ConfigError, ModelError
from contracts.pooling import Pooling
from engine.backends.choice import choose
from engine.kv.spec import make_spec
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import AttentionLayer, HeadAttention, computation
from engine.model.config_files import auto_config, raw_config
from engine.pooling import Pooler
from engine.start.loaded_model import LoadedModel
from engine.start.sizing import refuse_large_weights
from engine.wrapped.config import OwnConfig, refuse_quantized, refuse_untrusted
from engine.wrapped.encoder import EncoderModel
from engine.wrapped.loading import load_own_model
from infra.config.engine import EngineConfig
from infra.process.status import Progress

TYPES_BEHIND_PADDING = (
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "roberta-prelayernorm",
    "camembert",
    "xmod",
    "mpnet",
)
"""Model types whose positions begin behind the padding token's id, and that have no token types for a pair of texts."""
HEADS_BESIDE_STATES = ("pooler.", "cls.", "lm_head.", "head.", "decoder.", "classifier.", "vocab_", "qa_outputs.")
"""Prefixes of the names of heads on top of the hidden states, whose weights a model of vectors does not need."""
BLOCK_LAYER = AttentionLayer(HeadAttention(heads=1, kv_heads=1, head_dim=16, scale=1.0, rope=None))
"""The layer whose blocks count the tokens of a step; nothing is stored."""


def load_encoder(
    config: EngineConfig,
    directory: Path,
    pooling: Pooling,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
) -> LoadedModel:
    """Loads the model. Raises `ModelError` for a model that cannot be served, `ConfigError` for settings."""
    if config.quantization != "none":
        raise ConfigError("quantization", config.quantization, f"transformers' own code computes {directory.name}")
    if pooling.tokens:
        raise ModelError(f"{directory.name}: only models of our own families score by the logits of two tokens")
    found = read_encoder_config(directory, config)
    checkpoint = Checkpoint(directory)
    parameters = checkpoint.parameters()
    refuse_large_weights(config, parameters, dtype, device)
    classifies = pooling.task == "score"
    kind = AutoModelForSequenceClassification if classifies else AutoModel
    own = load_own_model(directory, found, device, dtype, progress, kind, () if classifies else HEADS_BESIDE_STATES)
    if is_bidirectional(raw_config(directory)):
        _refuse_causal(own, found, device)
    described = found.described((BLOCK_LAYER,))
    progress("hashing weights", 0.0)
    spec = make_spec(described, dtype, config.block_size, checkpoint.digest(computation(described)))
    plain = structs.replace(config, cpu_backend="torch", cuda_backend="torch")
    model: EncoderModel[Any] = EncoderModel(own, classifies=classifies, separator=_separator(directory, found, pooling))
    pooling = structs.replace(pooling, width=1 if classifies else int(found.config.hidden_size))
    return LoadedModel(
        choose(plain, device, dtype, described),
        model,
        described,
        spec,
        parameters.total(),
        is_wrapped=True,
        pooler=Pooler(pooling, whole=True),
    )


def _refuse_causal(own: Any, found: OwnConfig, device: torch.device) -> None:
    """Raises `ModelError` if a token's state does not depend on the token behind it, as the config says it does."""
    with torch.inference_mode():
        texts = torch.tensor([[1, 2], [1, 3]], device=device)
        first, other = own(input_ids=texts, output_hidden_states=True).hidden_states[-1][:, 0]
    if torch.equal(first, other):
        what = "its config says that tokens see the tokens behind them, and transformers' code computes it as causal"
        raise ModelError(f"{found.name}: {what}")


def read_encoder_config(directory: Path, options: EngineConfig) -> OwnConfig:
    """Reads the config in `directory`. Raises as `load_encoder` does."""
    name, raw = directory.name, raw_config(directory)
    refuse_untrusted(raw, name, trust_remote_code=options.trust_remote_code)
    refuse_quantized(raw, name)
    config = auto_config(directory, trust_remote_code=options.trust_remote_code)
    if config.is_encoder_decoder:
        raise ModelError(f"{name}: encoder-decoder models are not served, and {config.model_type} is one")
    positions = int(getattr(config, "max_position_embeddings", None) or 0)
    if config.model_type in TYPES_BEHIND_PADDING:
        positions -= int(config.pad_token_id) + 1
    if positions > 0 and options.max_model_len > positions:
        raise ConfigError(
            "max_model_len", options.max_model_len, f"the model was made for at most {positions} positions"
        )
    served = options.max_model_len or min(each for each in (positions, longest_text(directory), 1 << 30) if each > 0)
    if served == 1 << 30:
        raise ConfigError("max_model_len", 0, "the model's config names no longest text; say one")
    if hasattr(config, "reference_compile"):
        config.reference_compile = False  # would compile for each new shape
    return OwnConfig(name, config, positions or served, served, (), options.trust_remote_code)


def _separator(directory: Path, own: OwnConfig, pooling: Pooling) -> int | None:
    """Returns the token between the texts of a pair, for a classifier with token types; else None."""
    has_types = own.config.model_type not in TYPES_BEHIND_PADDING and getattr(own.config, "type_vocab_size", 0) > 1
    if pooling.task != "score" or not has_types:
        return None
    text = named_tokens(settings_of(directory)).get("sep_token")
    found: int | None = tokenizer_of(directory).token_to_id(text) if text is not None else None
    return found
