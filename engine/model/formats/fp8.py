"""Reads fp8 checkpoints: scales for blocks of 128 x 128 (DeepSeek), for each output, or for the whole weight.

A layer's `weight` is e4m3 and multiplied by its scale, called `weight_scale_inv` (DeepSeek, transformers) or
`weight_scale` (vLLM, FBGEMM). DeepSeek-AI 2024 (https://arxiv.org/abs/2412.19437), section 3.3. All are made for inputs
in fp8. Static input scales are not read, since a scale for each token is finer.
"""

from dataclasses import dataclass
from typing import Any

from engine.model.formats.fields import sizes_of, supported_word
from engine.model.formats.floats import ACTIVATION_SCALE_SUFFIXES, Block, first_held, fp8, is_float
from engine.model.formats.format import FloatFormat, StoredTensors
from engine.model.quantized import Form, Weight

SCALE_NAMES = ("weight_scale", "weight_scale_inv")


@dataclass(frozen=True)
class Fp8(FloatFormat):
    """Reads layers whose weight is stored in fp8; other layers are floats."""

    model: str  # its name, for errors
    block: Block | None  # None: one scale for each output, or for the whole weight

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        if is_float(stored, name):
            return super().weight(stored, name, shape)
        scale = first_held(stored, name, SCALE_NAMES)
        block = self.block
        if block is None:
            one = all(size == 1 for size in stored.shape(f"{name}.{scale}"))
            block = shape if one else (1, shape[1])
        return fp8(stored, self.model, name, shape, scale, block, meets_bytes=True)

    def weights_per_element(self, name: str, kind: str) -> tuple[Form | None, int]:
        if kind == "F8_E4M3":
            return "fp8", 1
        return None, 0 if name.endswith((*SCALE_NAMES, *ACTIVATION_SCALE_SUFFIXES)) else 1

    def is_irrelevant(self, stored: StoredTensors, name: str) -> bool:
        return name.endswith(ACTIVATION_SCALE_SUFFIXES)

    def settings(self) -> bytes:
        return f"fp8 {self.block}".encode()


def read_fp8(config: dict[str, Any], model: str) -> Fp8:
    supported_word(config.get("fmt") or "e4m3", model, "fp8's fmt", ("e4m3",))
    supported_word(config.get("scale_fmt") or "float", model, "fp8's scale_fmt", ("float", "ue8m0"))
    supported_word(config.get("expert_dtype") or "fp8", model, "fp8's expert_dtype", ("fp8",))
    found = config.get("weight_block_size")
    return Fp8(model, None if found is None else sizes_of(found, model, "weight_block_size"))


def read_fbgemm_fp8(config: dict[str, Any], model: str) -> Fp8:
    return Fp8(model, None)
