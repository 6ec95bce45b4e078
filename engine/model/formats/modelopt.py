"""Reads exports of NVIDIA's Model Optimizer: fp8 with a scale for a weight, an output or a block, NVFP4, and MXFP8.

A layer's `weight` is e4m3, or for NVFP4 uint8 `[out, in / 2]` with `weight_scale` e4m3 `[out, in / 16]` times a single
`weight_scale_2`. The stored tensors decide how a layer is read, not the config. See
github.com/NVIDIA/TensorRT-Model-Optimizer, modelopt/torch/export/quant_utils.py.
"""

from dataclasses import dataclass
from typing import Any

from engine.model.formats.fields import object_of, supported_word
from engine.model.formats.floats import ACTIVATION_SCALE_SUFFIXES, FP8_DTYPE, fp8, is_float
from engine.model.formats.format import FloatFormat, StoredTensors
from engine.model.formats.micro import E8M0_DTYPE, fine_scales, mxfp8, nvfp4
from engine.model.quantized import Form, Weight

MIXED_PRECISION = "MIXED_PRECISION"
SERVED_ALGORITHMS = (
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "NVFP4",
    "W4A16_NVFP4",
    "W4A8_NVFP4_FP8",
    "MXFP8",
    MIXED_PRECISION,
)
SCALE_SUFFIXES = (".weight_scale", ".weight_scale_2")
FP8_BLOCK_SIZE = 128
"""Outputs, and inputs, that share a scale in `FP8_PB_WO`."""


@dataclass(frozen=True)
class Modelopt(FloatFormat):
    """Reads layers that are stored quantized; other layers are floats."""

    model: str  # its name, for errors

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        if is_float(stored, name):
            return super().weight(stored, name, shape)
        if stored.kind(f"{name}.weight") == "U8":
            one = stored.shape(f"{name}.weight_scale_2") == (1,)
            coarse = stored.tensor(f"{name}.weight_scale_2", (1,) if one else ())
            fine = fine_scales(stored, self.model, name, shape)
            return nvfp4(stored, f"{name}.weight", shape, fine * coarse.float())
        if stored.kind(f"{name}.weight_scale") == E8M0_DTYPE:
            return mxfp8(stored, self.model, name, shape)
        scales = [size for size in stored.shape(f"{name}.weight_scale") if size != 1]
        block = shape if not scales else (1, shape[1]) if scales == [shape[0]] else (FP8_BLOCK_SIZE, FP8_BLOCK_SIZE)
        is_weight_only = block == (FP8_BLOCK_SIZE, FP8_BLOCK_SIZE)  # the others' inputs are in fp8 as well
        return fp8(stored, self.model, name, shape, "weight_scale", block, meets_bytes=not is_weight_only)

    def weights_per_element(self, name: str, kind: str) -> tuple[Form | None, int]:
        if name.endswith((*SCALE_SUFFIXES, *ACTIVATION_SCALE_SUFFIXES)):
            return None, 0
        if kind == "U8":
            return "int8", 2
        return "fp8" if kind == FP8_DTYPE else None, 1

    def is_irrelevant(self, stored: StoredTensors, name: str) -> bool:
        return name.endswith(ACTIVATION_SCALE_SUFFIXES)

    def settings(self) -> bytes:
        return b"modelopt"


def read_modelopt(quantization_config: dict[str, Any], model: str) -> Modelopt:
    algorithm = quantization_config.get("quant_algo")
    if algorithm is not None:  # else only KV is quantized
        supported_word(_upper(algorithm), model, "modelopt's quant_algo", SERVED_ALGORITHMS)
    layers = object_of(quantization_config, model, "quantized_layers")
    for name in layers:
        supported_word(
            _upper(object_of(layers, model, name).get("quant_algo")),
            model,
            f"modelopt's quant_algo of {name}",
            SERVED_ALGORITHMS,
        )
    return Modelopt(model)


def _upper(algorithm: Any) -> Any:
    return algorithm.upper() if isinstance(algorithm, str) else algorithm
