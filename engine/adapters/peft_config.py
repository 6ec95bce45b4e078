"""Reads PEFT's `adapter_config.json`: rank and scale of each module. Unsupported settings raise errors."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from contracts.errors import AdapterError

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 4 << 20
MAX_PATTERN_CHARACTERS = 256
MAX_PATTERN_REPEATS = 3  # more repetition operators might take exponential time
UNSUPPORTED_SETTINGS = {
    "use_dora": "DoRA",
    "modules_to_save": "modules that are saved whole",
    "fan_in_fan_out": "weights stored as [in, out]",
    "lora_bias": "biases",
    "trainable_token_indices": "tokens of the embedding",
    "target_parameters": "parameters that are no linear layers, such as experts",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activation by tokens (aLoRA)",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
}
"""PEFT settings that must be off, with their meaning for the error."""
WEIGHT_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initializations that change the model's own weights, so that the adapter does not fit the original model."""


class AdapterConfig(Struct, frozen=True):
    """Rank and scale of an adapter's modules."""

    rank: int
    alpha: float
    rank_stabilized: bool  # rsLoRA (https://arxiv.org/abs/2312.03732): the scale is alpha / sqrt(rank)
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    targets: tuple[str, ...]  # names, or ends of names, of changed modules; empty: all modules in the file

    def rank_of(self, module: str) -> int:
        found = _found(self.rank_pattern, module)
        return self.rank if found is None else self.rank_pattern[found]

    def scale_of(self, module: str) -> float:
        """Returns the factor of B A."""
        rank, found = self.rank_of(module), _found(self.alpha_pattern, module)
        alpha = self.alpha if found is None else self.alpha_pattern[found]
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)

    def targeted(self, module: str) -> bool:
        return any(module == target or module.endswith(f".{target}") for target in self.targets)


def read_adapter_config(directory: Path, max_rank: int) -> tuple[AdapterConfig, bytes]:
    """Returns the config, and the file's bytes. Raises `AdapterError`."""
    path = directory / CONFIG_FILE
    if not directory.is_dir():
        raise AdapterError(f"there is no directory {directory.name!r}")
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise AdapterError(f"{CONFIG_FILE} has more than {MAX_CONFIG_BYTES} bytes")
        body = path.read_bytes()
        settings = json.loads(body)
    except OSError:
        raise AdapterError(f"{directory.name!r} has no {CONFIG_FILE}, so it is no adapter in PEFT's format") from None
    except (ValueError, RecursionError):
        raise AdapterError(f"{CONFIG_FILE} is not JSON") from None
    if not isinstance(settings, dict):
        raise AdapterError(f"{CONFIG_FILE} is not a JSON object")
    _refuse(settings)
    config = AdapterConfig(
        rank=_number(settings, "r", int),
        alpha=_number(settings, "lora_alpha", float),
        rank_stabilized=settings.get("use_rslora") is True,
        rank_pattern=_patterns(settings, "rank_pattern", int),
        alpha_pattern=_patterns(settings, "alpha_pattern", float),
        targets=_targets(settings),
    )
    largest = max(config.rank, *config.rank_pattern.values(), 1)
    if largest > max_rank:
        raise AdapterError(f"its rank {largest} is above --max-lora-rank {max_rank}")
    return config, body


def _refuse(settings: Mapping[str, Any]) -> None:
    if settings.get("peft_type") != "LORA":
        raise AdapterError(f"{CONFIG_FILE}: peft_type is {settings.get('peft_type')!r}, and only 'LORA' is supported")
    if settings.get("bias", "none") != "none":
        raise AdapterError(f"{CONFIG_FILE}: bias is {settings['bias']!r}, and only 'none' is supported")
    for key, what in UNSUPPORTED_SETTINGS.items():
        if settings.get(key):
            raise AdapterError(f"{CONFIG_FILE}: {key} asks for {what}, which is not supported")
    init = settings.get("init_lora_weights", True)
    if isinstance(init, str) and init.startswith(WEIGHT_CHANGING_INITS):
        raise AdapterError(f"{CONFIG_FILE}: init_lora_weights is {init!r}, which changes the model's own weights")


def _number(settings: Mapping[str, Any], key: str, kind: type) -> Any:
    value = settings.get(key)
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float) or not value > 0:
        raise AdapterError(f"{CONFIG_FILE}: {key} is {value!r}, and not a number above 0")
    return kind(value)


def _patterns(settings: Mapping[str, Any], key: str, kind: type) -> dict[str, Any]:
    patterns = settings.get(key) or {}
    if not isinstance(patterns, dict):
        raise AdapterError(f"{CONFIG_FILE}: {key} is no object")
    for pattern in patterns:
        if (
            len(pattern) > MAX_PATTERN_CHARACTERS
            or "(" in pattern
            or sum(map(pattern.count, "*+?{")) > MAX_PATTERN_REPEATS
        ):
            raise AdapterError(f"{CONFIG_FILE}: {key} has the pattern {pattern[:64]!r}, which is too elaborate")
        try:
            re.compile(pattern)
        except re.error:
            raise AdapterError(
                f"{CONFIG_FILE}: {key} has the pattern {pattern!r}, which is no regular expression"
            ) from None
    return {pattern: _number(patterns, pattern, kind) for pattern in patterns}


def _targets(settings: Mapping[str, Any]) -> tuple[str, ...]:
    targets: Sequence[Any] = settings.get("target_modules") or ()
    chosen = any(settings.get(key) for key in ("layers_to_transform", "layers_pattern", "exclude_modules"))
    if isinstance(targets, str) or chosen:
        return ()
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise AdapterError(f"{CONFIG_FILE}: target_modules is neither a text nor a list of texts")
    return tuple(targets)


def _found(patterns: Iterable[str], module: str) -> str | None:
    """Returns the first pattern that matches the end of a module's name, as in PEFT."""
    return next((pattern for pattern in patterns if re.match(rf"(.*\.)?({pattern})$", module)), None)
