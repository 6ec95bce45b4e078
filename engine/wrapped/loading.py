"""Loads a model by transformers, in fp32, bf16 or fp16, from safetensors only.

Of a model that also reads images, only the language model is loaded: its tensors get the names that they would have
alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from transformers.utils import logging

from contracts.errors import ModelError
from engine.model.config_files import sentence_of
from engine.model.spellings import is_beside_text
from engine.wrapped.config import OwnConfig
from engine.wrapped.stored import TEXT_MODEL_PREFIXES
from infra.process.status import Progress


def load_own_model(
    directory: Path,
    own: OwnConfig,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    kind: Any = AutoModelForCausalLM,
    needless: tuple[str, ...] = (),
    dequantized: dict[str, Tensor] | None = None,
) -> Any:
    """Loads transformers' model of a `kind`: a causal one with eager attention, since ours takes its place.

    `dequantized` are the weights of a causal model's quantized checkpoint.

    Raises `ModelError` if loading fails, or tensors are missing, unexpected or of another shape, unless their names
    begin with one of `needless`.
    """
    progress("loading weights", 0.0)
    try:
        with _bars_as(progress):
            loads = kind if dequantized is None else MODEL_FOR_CAUSAL_LM_MAPPING[type(own.config)]
            model, found = loads.from_pretrained(
                str(directory) if dequantized is None else None,
                config=own.config,
                state_dict=dequantized,
                dtype=dtype,
                attn_implementation="eager" if kind is AutoModelForCausalLM else None,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # checked below, by name
                local_files_only=True,
                trust_remote_code=own.trust_remote_code,
                output_loading_info=True,
                **({"key_mapping": dict(TEXT_MODEL_PREFIXES)} if own.beside_images else {}),
            )
    except Exception as error:  # a model's own code may raise anything
        raise ModelError(f"{own.name}: transformers cannot load it: {sentence_of(error)}") from error
    if own.beside_images:
        found["unexpected_keys"] = [key for key in found["unexpected_keys"] if not is_beside_text(key)]
    _refuse_other_weights(found, own.name, needless)
    progress("loading weights", 100.0)
    return model.to(device).eval().requires_grad_(False)


def _refuse_other_weights(found: dict[str, Any], name: str, needless: tuple[str, ...]) -> None:
    for key, words in (
        ("missing_keys", "the weights lack"),
        ("mismatched_keys", "the config says another shape of"),
        ("unexpected_keys", "the config has no place for the weight"),
    ):
        keys = sorted(str(key[0] if isinstance(key, tuple) else key) for key in found[key])
        keys = [key for key in keys if not key.startswith(needless)]
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise ModelError(f"{name}: {words} {keys[0]}{more}")


@contextmanager
def _bars_as(progress: Progress) -> Iterator[None]:
    class Bar:
        def __init__(self, items: Any) -> None:
            self._items = items

        def __iter__(self) -> Iterator[Any]:
            total = max(1, len(self._items))
            for index, item in enumerate(self._items):
                progress("loading weights", 100.0 * index / total)
                yield item

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    before = logging.set_tqdm_hook(lambda factory, args, kwargs: Bar(args[0]) if args else factory(*args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)
        logging.set_verbosity(verbosity)
