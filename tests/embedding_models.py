"""Small random models that give vectors or scores, with the files that sentence-transformers writes beside them."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, processors
from transformers import AutoModel, Qwen3Config

from tests.gateway.models import byte_level

END = "<|endoftext|>"


def saved(directory: Path, model: Any) -> Any:
    """Saves a model with weights of which every one matters, and returns it."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.2 + is_scale)
    model.float().eval().save_pretrained(directory)
    return model


def with_modules(directory: Path, pooling: str, *, normalized: bool = True) -> None:
    """Writes modules.json and the config of its Pooling, whose mode is `pooling`."""
    names = ["models.Transformer", "models.Pooling", *(["models.Normalize"] if normalized else [])]
    modules = [
        {"idx": at, "name": str(at), "path": f"{at}_{name.rpartition('.')[2]}", "type": f"sentence_transformers.{name}"}
        for at, name in enumerate(names)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": False}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({**modes, pooling: True, "include_prompt": True}))


def last_token_model(directory: Path) -> Any:
    """Makes a Qwen3 without a head, whose tokenizer ends each text with a token, as Qwen3-Embedding's; returns it."""
    byte_level(directory, template=None)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    end = (END, tokenizer.token_to_id(END))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[end]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        is_matryoshka=True,
    )
    model = saved(directory, AutoModel.from_config(config))
    with_modules(directory, "pooling_mode_lasttoken")
    return model
