"""The supported formats of quantized checkpoints."""

from collections.abc import Callable
from typing import Any

from contracts.errors import ModelError
from engine.model.config_files import quantization_of
from engine.model.formats.auto_round import read_auto_round
from engine.model.formats.awq import read_awq
from engine.model.formats.by_family import ByFamily
from engine.model.formats.compressed_tensors import read_compressed_tensors
from engine.model.formats.fields import shown
from engine.model.formats.format import FloatFormat, WeightFormat
from engine.model.formats.fp8 import read_fbgemm_fp8, read_fp8
from engine.model.formats.gptq import read_gptq
from engine.model.formats.modelopt import read_modelopt

ReadFormat = Callable[[dict[str, Any], str], WeightFormat]
"""Reads the `quantization_config` of the model with this name. Raises `ModelError` for unsupported settings."""

FORMATS_BY_METHOD: dict[str, ReadFormat] = {
    "awq": read_awq,
    "gptq": read_gptq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "fbgemm_fp8": read_fbgemm_fp8,
    "modelopt": read_modelopt,
    "modelopt_fp4": read_modelopt,
    "auto-round": read_auto_round,
    "mxfp4": lambda quantization_config, name: ByFamily(),
}
"""By `quant_method`."""
ADVICE_BY_METHOD = {"bitsandbytes": "serve the checkpoint that it was made of, with --quantization int8 or int4"}
"""Advice for unsupported formats, by `quant_method`."""


def format_of(raw: dict[str, Any], name: str) -> WeightFormat:
    """Returns the format in the config.json of the model `name`. Raises `ModelError` for an unsupported one."""
    quantization_config = quantization_of(raw, name)
    if quantization_config is None:
        return FloatFormat()
    method = shown(
        quantization_config.get("quant_method", "modelopt" if "quant_algo" in quantization_config else "unknown")
    )
    if method not in FORMATS_BY_METHOD:
        others = ", ".join(("fp32", "bf16", "fp16", *FORMATS_BY_METHOD))
        advice = f"{ADVICE_BY_METHOD[method]}; " if method in ADVICE_BY_METHOD else ""
        raise ModelError(f"{name}: checkpoints quantized with {method} are not supported; {advice}supported: {others}")
    return FORMATS_BY_METHOD[method](quantization_config, name)
