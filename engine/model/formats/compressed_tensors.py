"""Reads checkpoints of compressed-tensors, which LLM Compressor writes.

The config has groups of layers. A group's `targets` are names, patterns after `re:`, or `Linear` for all other layers.
Its `weights` give bits, type and granularity of scales; its format says how codes are packed. See
github.com/vllm-project/compressed-tensors: quantization/quant_args.py, compressors/. Of `input_activations` only one
fact is used: whether they are symmetric 8 bits of the weights' type. A backend that quantizes inputs uses a scale for
each token, which is at least as fine as any that the config may ask for.
"""

import re
from dataclasses import dataclass
from typing import Any

from contracts.errors import ModelError
from engine.model.formats.fields import (
    WHOLE_ROW_GROUP,
    bits_of,
    group_of,
    object_of,
    pattern,
    shown,
    sizes_of,
    supported_word,
)
from engine.model.formats.floats import ACTIVATION_SCALE_SUFFIXES, is_float
from engine.model.formats.format import FloatFormat, StoredTensors
from engine.model.formats.packings import PACKED_FORMATS, Scheme
from engine.model.quantized import Form, Weight
from engine.model.spellings import spellings

ANY_LINEAR = "Linear"
SCALE_SUFFIXES = (".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx", ".weight_global_scale")
"""Suffixes of the tensors by which weights are dequantized."""
IGNORED_SUFFIXES = (
    *ACTIVATION_SCALE_SUFFIXES,
    ".input_zero_point",
    ".output_zero_point",
    ".input_global_scale",
    ".weight_shape",
)
UNSUPPORTED_OPTIONS: dict[str, tuple[Any, ...]] = {
    "transform_config": (None, {}, {"config_groups": {}}),
    "moe_sparsity_config": (None, {}),
}
"""Unsupported options, with the values that switch them off."""


@dataclass(frozen=True)
class ConfigGroup:
    """Layers with one scheme."""

    targets: tuple[str | re.Pattern[str], ...]
    scheme: Scheme

    def names(self, layer: str) -> bool:
        names = spellings(layer)
        return any(each in names if isinstance(each, str) else any(map(each.match, names)) for each in self.targets)


@dataclass(frozen=True)
class CompressedTensors(FloatFormat):
    """Reads layers that are stored quantized; other layers are floats, whatever the config's `ignore` says."""

    model: str  # its name, for errors
    groups: tuple[ConfigGroup, ...]

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        if stored.holds(f"{name}.weight") and is_float(stored, name):
            return super().weight(stored, name, shape)
        scheme = self.scheme_of(name)
        return PACKED_FORMATS[scheme.format].read(stored, self.model, name, shape, scheme)

    def scheme_of(self, name: str) -> Scheme:
        """Raises `ModelError` if no target matches the layer `name`."""
        matches = [group for group in self.groups if group.names(name)]
        matches += [group for group in self.groups if ANY_LINEAR in group.targets]
        if not matches:
            raise ModelError(f"{self.model}: {name} is quantized, but no target of quantization_config names it")
        return matches[0].scheme

    def weights_per_element(self, name: str, kind: str) -> tuple[Form | None, int]:
        if name.endswith((*SCALE_SUFFIXES, *IGNORED_SUFFIXES)):
            return None, 0
        layer, _, tensor = name.rpartition(".")
        if tensor == "weight_packed":
            return self.scheme_of(layer).weights_per_element(kind)
        if kind in ("I8", "F8_E4M3"):
            return "int8" if kind == "I8" else "fp8", 1
        return None, 1

    def is_irrelevant(self, stored: StoredTensors, name: str) -> bool:
        return name.endswith(IGNORED_SUFFIXES)

    def settings(self) -> bytes:
        return f"compressed-tensors {self.groups}".encode()


def read_compressed_tensors(config: dict[str, Any], model: str) -> CompressedTensors:
    for key, empty in UNSUPPORTED_OPTIONS.items():
        if config.get(key) not in empty:
            raise ModelError(f"{model}: compressed-tensors with a {key} is not supported")
    sparsity = object_of(config, model, "sparsity_config").get("format", "dense")
    supported_word(sparsity, model, "the sparsity_config of compressed-tensors with the format", ("dense",))
    groups, whole = object_of(config, model, "config_groups"), config.get("format")
    return CompressedTensors(model, tuple(_group(groups, model, key, whole) for key in groups))


def _group(groups: dict[str, Any], model: str, key: str, whole: Any) -> ConfigGroup:
    group = groups[key]
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise ModelError(
            f"{model}: the config group {shown(key)} of compressed-tensors does not say what its weights are"
        )
    targets = group.get("targets") or []
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise ModelError(f"{model}: quantization_config says targets {shown(targets)}, which are no names")
    named = (pattern(each.removeprefix("re:"), model) if each.startswith("re:") else each for each in targets)
    inputs = object_of(group, model, "input_activations")
    return ConfigGroup(tuple(named), _scheme(group["weights"], inputs, model, group.get("format") or whole))


def _scheme(weights: dict[str, Any], inputs: dict[str, Any], model: str, packing: Any) -> Scheme:
    packed = PACKED_FORMATS[supported_word(packing, model, "compressed-tensors' format", PACKED_FORMATS)]
    kind = supported_word(str(weights.get("type") or "int").lower(), model, f"{packing} of type", packed.types)
    bits = bits_of(weights, model, str(packing), packed.bits, "num_bits")
    strategy = packed.strategies[supported_word(_strategy(weights), model, f"{packing} by", packed.strategies)]
    symmetric = bool(weights.get("symmetric", True))
    if kind == "float" and not symmetric:
        raise ModelError(f"{model}: {packing} with zero points is not supported")
    by_activation = weights.get("actorder") in ("group", "dynamic", True)
    if by_activation and packing != "pack-quantized":
        raise ModelError(f"{model}: {packing} with actorder {weights['actorder']} is not supported")
    size = group_of(weights, model, "group_size") if strategy == "group" else WHOLE_ROW_GROUP
    block = None
    if strategy == "block":
        block = sizes_of(weights.get("block_structure"), model, "block_structure")
    return Scheme(
        str(packing),
        kind,
        bits,
        strategy,
        size,
        symmetric=symmetric,
        by_activation=by_activation,
        block=block,
        meets_bytes=_meets_bytes(inputs, kind),
    )


def _meets_bytes(inputs: dict[str, Any], kind: str) -> bool:
    same = str(inputs.get("type") or "int").lower() == kind
    return bool(inputs) and inputs.get("num_bits", 8) == 8 and same and bool(inputs.get("symmetric", True))


def _strategy(weights: dict[str, Any]) -> str:
    group = weights.get("group_size")
    inferred = "tensor" if group is None else "channel" if group == WHOLE_ROW_GROUP else "group"
    return str(weights.get("strategy") or inferred).lower()
