"""Lists the formats of quantized checkpoints that are served."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.errors import ModelError
from engine.model.config_files import read_json
from engine.model.formats.by_family import ByFamily
from engine.model.formats.format import Plain, WeightFormat
from engine.model.weights import Checkpoint

ReadFormat = Callable[[dict[str, Any], str], WeightFormat]
"""Reads a `quantization_config`, of a model of this name. Raises `ModelError` for what of it is not supported."""

FORMATS: dict[str, ReadFormat] = {"mxfp4": lambda given, name: ByFamily()}
"""By `quant_method`."""


def format_of(raw: dict[str, Any], name: str) -> WeightFormat:
    """Returns the format that a config.json names, of the model `name`. Raises `ModelError` for one that is unknown."""
    given = quantization_of(raw)
    if given is None:
        return Plain()
    method = given.get("quant_method", "unknown")
    if method not in FORMATS:
        others = ", ".join(("fp32", "bf16", "fp16", *FORMATS))
        raise ModelError(f"{name}: checkpoints quantized with {method} are not supported; supported: {others}")
    return FORMATS[method](given, name)


def quantization_of(raw: dict[str, Any]) -> dict[str, Any] | None:
    """Returns what a config.json says of quantized weights; None: it has none."""
    if "quantization_config" not in raw:
        return None
    return dict(raw["quantization_config"] or {})


def open_checkpoint(directory: Path) -> Checkpoint:
    """Opens the weights in a model's directory, in the format that its config names. Raises `ModelError`."""
    return Checkpoint(directory, format_of(read_json(directory / "config.json"), directory.name))
