"""Reads GPTQ checkpoints: 4 or 8 bits, as GPTQModel, AutoGPTQ and Optimum write them.

A layer has `qweight` int32 `[in x bits / 32, out]` with the codes of neighbouring inputs in a word, `qzeros` int32
`[groups, out x bits / 32]`, `scales` `[groups, out]`, and optionally `g_idx` int32 `[in]`, each input's group: with
`desc_act`, groups follow the order of quantization, so that a group's inputs are scattered. See `TorchQuantLinear`
of GPTQModel (github.com/ModelCloud/GPTQModel). Frantar et al. 2022 (https://arxiv.org/abs/2210.17323).
"""

import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from contracts.errors import ModelError
from engine.model.formats.fields import bits_of, group_of, object_of, pattern, shown, supported_word
from engine.model.formats.format import FloatFormat, StoredTensors
from engine.model.formats.integers import FORM_BY_BITS, group_in, integers, order_in, refuse_indivisible, unpacked
from engine.model.quantized import Form, Weight
from engine.model.spellings import spellings

GPTQ_BITS = (4, 8)
VERSION_1_ZERO_OFFSETS = {4: 0x11111111, 8: 0x01010101}
"""Added to each word of zero points in version 1, by bits: writers subtracted it from whole words, borrows included."""


@dataclass(frozen=True)
class GptqPacking:
    """How one layer's codes are packed."""

    bits: int
    group: int  # inputs that share a scale; -1: all
    by_activation: bool  # a group's inputs are scattered


@dataclass(frozen=True)
class Gptq(FloatFormat):
    """Reads layers that have a `qweight`; other layers are floats."""

    model: str  # its name, for errors
    version: int  # 1 stores zero points minus one
    packing: GptqPacking
    others: tuple[tuple[re.Pattern[str], GptqPacking], ...]  # exceptions by layer name; the first match wins

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        if stored.holds(f"{name}.weight"):
            return super().weight(stored, name, shape)
        packing, (outputs, inputs) = self.packing_of(name), shape
        bits, in_word = packing.bits, 32 // packing.bits
        refuse_indivisible(self.model, name, "inputs", inputs, in_word)
        refuse_indivisible(self.model, name, "outputs", outputs, in_word)
        words = stored.packed(f"{name}.qweight", (inputs // in_word, outputs), "I32")
        group = group_in(stored, self.model, f"{name}.scales", packing.group, inputs)
        groups = -(-inputs // group)
        scales = stored.tensor(f"{name}.scales", (groups, outputs))
        zeros = stored.packed(f"{name}.qzeros", (groups, outputs // in_word), "I32")
        codes, order = unpacked(words.t(), bits), self._order(stored, name, packing, group, inputs)
        return integers(
            codes if order is None else codes[:, order],
            self._zeros(zeros, bits).t(),
            scales.t().float().contiguous(),
            group,
            bits,
            order,
        )

    def _zeros(self, words: Tensor, bits: int) -> Tensor:
        return unpacked(words + VERSION_1_ZERO_OFFSETS[bits] if self.version == 1 else words, bits)

    def _order(self, stored: StoredTensors, name: str, packing: GptqPacking, group: int, inputs: int) -> Tensor | None:
        if not packing.by_activation and not stored.holds(f"{name}.g_idx"):
            return None
        return order_in(stored, self.model, f"{name}.g_idx", group, inputs)

    def packing_of(self, name: str) -> GptqPacking:
        called = spellings(name)
        return next((packing for names, packing in self.others if any(map(names.match, called))), self.packing)

    def weights_per_element(self, name: str, kind: str) -> tuple[Form | None, int]:
        layer, _, tensor = name.rpartition(".")
        if tensor == "qweight":
            bits = self.packing_of(layer).bits
            return FORM_BY_BITS[bits], 32 // bits
        return None, 0 if tensor in ("qzeros", "scales", "g_idx") else 1

    def is_irrelevant(self, stored: StoredTensors, name: str) -> bool:
        # AutoGPTQ once wrote biases of zeros for layers without biases.
        layer, _, tensor = name.rpartition(".")
        if tensor != "bias" or not stored.holds(f"{layer}.qweight"):
            return False
        return not stored.tensor(name, stored.shape(name)).any()

    def settings(self) -> bytes:
        others = [(names.pattern, packing) for names, packing in self.others]
        return f"gptq {self.version} {self.packing} {others}".encode()


def read_gptq(config: dict[str, Any], model: str) -> Gptq:
    version = str(config.get("checkpoint_format") or config.get("format") or "gptq").lower()
    if config.get("is_marlin_format"):
        version = "marlin"
    supported_word(version, model, "GPTQ's checkpoint_format", ("gptq", "gptq_v2"))
    supported_word(config.get("pack_dtype") or "int32", model, "GPTQ's pack_dtype", ("int32",))
    packing = _packing(config, model)
    others = []
    dynamic = object_of(config, model, "dynamic")
    for names in dynamic:
        if names.startswith("-:"):
            continue  # not quantized: its weight is a tensor of floats
        changes = object_of(dynamic, model, names)
        if "adapter" in changes:
            raise ModelError(f"{model}: GPTQ's dynamic {shown(names)} has an adapter, which is not supported")
        others.append((pattern(names.removeprefix("+:"), model), _packing({**config, **changes}, model)))
    return Gptq(model, 1 if version == "gptq" else 2, packing, tuple(others))


def _packing(config: dict[str, Any], model: str) -> GptqPacking:
    bits = bits_of(config, model, "GPTQ", GPTQ_BITS, "bits", "w_bit")
    return GptqPacking(
        bits, group_of(config, model, "group_size", "q_group_size", default=128), bool(config.get("desc_act"))
    )
