"""Rounds keys and values like a quantized pool: the reference of all backends, to the bit.

`engine/model/kv_layout.py` has the formula and the reasons.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model.kv_layout import KVForm

LARGEST_VALUES = {"int8": 127.0, "fp8": 448.0}
KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def quantize(vectors: Tensor, form: KVForm, parts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rounds `[…, width]` of any float format; returns values, uint8 `[…, width]`, and scales, bf16 `[…, parts]`."""
    values, scales = [], []
    for part in vectors.float().split(list(parts), -1):
        highest = part.abs().amax(-1)
        scale = highest / torch.full_like(
            highest, LARGEST_VALUES[form]
        )  # a number would be multiplied by as its inverse
        scale = scale.clamp(min=torch.finfo(torch.float32).tiny).bfloat16()
        scales.append(torch.where(highest.isfinite(), scale, torch.nan))
        scaled = part * (1 / scales[-1].float())[..., None]
        scaled = torch.where(scaled.isfinite(), scaled, 0.0)
        rounded = scaled.round() if form == "int8" else scaled
        values.append(rounded.to(KV_DTYPES[form]).view(torch.uint8))
    return torch.cat(values, -1), torch.stack(scales, -1)


def dequantize(values: Tensor, scales: Tensor, form: KVForm, parts: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Dequantizes values and scales to `[…, width]`, rounded once to `dtype`."""
    numbers = values.view(KV_DTYPES[form]).split(list(parts), -1)
    found = [
        (part.float() * scale[..., None].float()).to(dtype)
        for part, scale in zip(numbers, scales.unbind(-1), strict=True)
    ]
    return found[0] if len(found) == 1 else torch.cat(found, -1)


def rounded(vectors: Tensor, form: KVForm, parts: Sequence[int]) -> Tensor:
    """Returns `[…, width]` after a round trip through a quantized pool, in its own format."""
    return dequantize(*quantize(vectors, form, parts), form, parts, vectors.dtype)
