"""Reads fields of a `quantization_config`. Errors name the field and its value."""

import re
from collections.abc import Iterable
from typing import Any

from contracts.errors import ModelError

WHOLE_ROW_GROUP = -1
"""Group size in configs for one scale for all inputs of an output."""


def whole_number(config: dict[str, Any], model: str, *names: str, default: int | None = None) -> int:
    """Returns the first of the fields `names` that exists. Raises `ModelError` if it is no whole number."""
    value = next((config[name] for name in names if config.get(name) is not None), default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"{model}: quantization_config says {names[0]} {shown(value)}, which is no whole number")
    return value


def bits_of(config: dict[str, Any], model: str, method: str, supported: Iterable[int], *names: str) -> int:
    """Returns the bits of a weight. Raises `ModelError` if they are not in `supported`."""
    bits, supported_values = whole_number(config, model, *names), tuple(supported)
    if bits not in supported_values:
        raise ModelError(
            f"{model}: {method} with {bits} bits is not supported; supported: {_listed(supported_values)} bits"
        )
    return bits


def group_of(config: dict[str, Any], model: str, *names: str, default: int | None = None) -> int:
    """Returns how many inputs share a scale, or `WHOLE_ROW_GROUP`. Raises `ModelError` for other values."""
    group = whole_number(config, model, *names, default=default)
    if group < 1 and group != WHOLE_ROW_GROUP:
        raise ModelError(f"{model}: quantization_config says {names[0]} {group}; it is a number of inputs, or -1")
    return group


def supported_word(value: Any, model: str, what: str, supported: Iterable[str]) -> str:
    """Returns `value`. Raises `ModelError` if it is not in `supported`."""
    supported_values = tuple(supported)
    if value not in supported_values:
        raise ModelError(f"{model}: {what} {shown(value)} is not supported; supported: {_listed(supported_values)}")
    return str(value)


def object_of(config: dict[str, Any], model: str, name: str) -> dict[str, Any]:
    """Returns the object in the field `name`, empty if missing. Raises `ModelError` for other values."""
    value = config.get(name)
    if value is not None and not isinstance(value, dict):
        raise ModelError(f"{model}: quantization_config says {shown(name)} {shown(value)}, which is no object")
    return value or {}


def sizes_of(value: Any, model: str, name: str) -> tuple[int, int]:
    """Returns the outputs and inputs of a block. Raises `ModelError` for anything but a pair of sizes."""
    sizes = value if isinstance(value, list) else []
    if len(sizes) != 2 or any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise ModelError(f"{model}: quantization_config says {name} {shown(value)}, which is no pair of sizes")
    return sizes[0], sizes[1]


def shown(value: Any) -> str:
    """Returns a value as one line of at most 100 characters."""
    return " ".join(str(value).split())[:100]


def pattern(text: str, model: str) -> re.Pattern[str]:
    """Compiles a pattern of layer names. Raises `ModelError` for an invalid one."""
    try:
        return re.compile(text)
    except re.error as error:
        why = f"which is none: {shown(error)}"
        raise ModelError(f"{model}: quantization_config has the pattern {shown(text)}, {why}") from None


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))
