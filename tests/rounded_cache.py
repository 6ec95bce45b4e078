"""The reference for quantized KV: transformers, whose cache rounds what it keeps as `--kv-dtype` says.

Written from the formula in `engine/model/kv_layout.py`, and with no code of ours.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from tests.reference import load_reference


def rounded(vectors: Tensor, form: str) -> Tensor:
    """Rounds fp32 `[…, width]`, each vector by a scale of its own."""
    largest = {"int8": 127, "fp8": 448}[form]
    scale = (vectors.abs().amax(-1, keepdim=True) / largest).clamp(min=2.0**-126).bfloat16().float()
    quotient = vectors * (1 / scale)
    return scale * (quotient.round() if form == "int8" else quotient.to(torch.float8_e4m3fn).float())


class RoundedCache(DynamicCache):  # type: ignore[misc]
    def __init__(self, config: Any, form: str) -> None:
        super().__init__(config=config)
        self._form = form

    def update(self, key_states: Tensor, value_states: Tensor, *more: Any, **named: Any) -> Any:
        """Rounds before it keeps: a token sees itself as all others will."""
        return super().update(rounded(key_states, self._form), rounded(value_states, self._form), *more, **named)


class RoundingModel:
    """Is transformers' model over such a cache, whether it is told to use one or not."""

    def __init__(self, model: Any, form: str) -> None:
        self._model = model
        self._form = form

    def __call__(self, tokens: Tensor, past_key_values: Any = None, use_cache: bool = True, **named: Any) -> Any:
        cache = RoundedCache(self._model.config, self._form) if past_key_values is None else past_key_values
        return self._model(tokens, past_key_values=cache, use_cache=True, **named)


def load_rounding(form: str) -> Callable[[Path], RoundingModel]:
    return lambda directory: RoundingModel(load_reference(directory), form)
