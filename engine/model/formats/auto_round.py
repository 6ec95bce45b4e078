"""Reads AutoRound checkpoints, whose config names GPTQ's or AWQ's packing.

`auto_gptq` stores zero points minus one, `auto_round` and `gptqmodel` store them unchanged. `extra_config` overrides
settings for layers, by name or pattern; layers with 16 bits or more are floats. See
github.com/intel/auto-round, auto_round/export/export_to_autoround/export.py. Cheng et al. 2023
(https://arxiv.org/abs/2309.05516).
"""

import re
from typing import Any

from contracts.errors import ModelError
from engine.model.formats.awq import Awq
from engine.model.formats.fields import bits_of, group_of, object_of, pattern, shown, supported_word, whole_number
from engine.model.formats.gptq import GPTQ_BITS, Gptq, GptqPacking

AWQ_PACKINGS = ("auto_round:auto_awq", "auto_round:awq")
GPTQ_VERSION_BY_PACKING = {
    "auto_round:auto_gptq": 1,
    "auto_round:gptq": 1,
    "auto_gptq": 1,
    "auto": 1,
    "auto_round": 2,
    "auto_round:gptqmodel": 2,
}
"""GPTQ version of each packing, which decides how zero points are stored."""
UNQUANTIZED_BITS = 16
REGEX_CHARACTERS = frozenset("^$|()[]?+*\\")
"""Characters that tell a pattern from a layer's name."""


def read_auto_round(config: dict[str, Any], model: str) -> Gptq | Awq:
    packed = supported_word(
        config.get("packing_format") or "auto",
        model,
        "auto-round's packing_format",
        (*GPTQ_VERSION_BY_PACKING, *AWQ_PACKINGS),
    )
    extra = object_of(config, model, "extra_config")
    changes = {name: object_of(extra, model, name) for name in extra}
    changes = {name: change for name, change in changes.items() if not _is_numbers(change, model)}
    changes = dict(sorted(changes.items(), key=lambda each: _is_pattern(each[0])))  # exact names first
    if packed not in AWQ_PACKINGS:
        others = tuple((_names(name, model), _packing(config | change, model)) for name, change in changes.items())
        return Gptq(model, GPTQ_VERSION_BY_PACKING[packed], _packing(config, model), others)
    packing = _packing(config, model)
    for name, change in changes.items():
        if _packing(config | change, model) != packing or packing.bits != 4:
            raise ModelError(
                f"{model}: auto-round in AWQ's packing with other bits or groups for {shown(name)} is not supported"
            )
    bits_of(config, model, packed, (4,), "bits")
    return Awq(model, packing.group)


def _is_numbers(change: dict[str, Any], model: str) -> bool:
    return change.get("bits") is not None and whole_number(change, model, "bits") >= UNQUANTIZED_BITS


def _packing(config: dict[str, Any], model: str) -> GptqPacking:
    supported_word(config.get("data_type") or "int", model, "auto-round's data_type", ("int",))
    acts = whole_number(config, model, "act_bits", default=UNQUANTIZED_BITS)
    if acts < UNQUANTIZED_BITS:
        raise ModelError(f"{model}: auto-round with act_bits {acts} is not supported; supported: weights alone")
    bits = bits_of(config, model, "auto-round", GPTQ_BITS, "bits")
    return GptqPacking(bits, group_of(config, model, "group_size", default=128), by_activation=False)


def _names(name: str, model: str) -> re.Pattern[str]:
    return pattern(f".*(?:{name})" if _is_pattern(name) else re.escape(name) + "$", model)


def _is_pattern(name: str) -> bool:
    return not REGEX_CHARACTERS.isdisjoint(name)
