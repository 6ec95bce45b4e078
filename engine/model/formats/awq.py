"""Reads AWQ checkpoints: 4 bits, packed for AutoAWQ's GEMM.

A layer has `qweight` int32 `[in, out / 8]`, `qzeros` int32 `[groups, out / 8]` and `scales` `[groups, out]`. A word has
the codes of 8 neighbouring outputs, in the order 0 2 4 6 1 3 5 7 from its lowest bits up: `WQLinear_GEMM` of AutoAWQ
(github.com/casper-hansen/AutoAWQ, awq/modules/linear/gemm.py). Lin et al. 2023 (https://arxiv.org/abs/2306.00978).
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from contracts.errors import ModelError
from engine.model.formats.fields import bits_of, group_of, supported_word
from engine.model.formats.format import FloatFormat, StoredTensors
from engine.model.formats.integers import group_in, integers, refuse_indivisible, unpacked
from engine.model.quantized import Form, Weight

OUTPUT_POSITIONS = [0, 4, 1, 5, 2, 6, 3, 7]
"""Position of each of eight outputs in a word, counted in codes from the lowest bits."""


@dataclass(frozen=True)
class Awq(FloatFormat):
    """Reads layers that have a `qweight`; other layers are floats."""

    model: str  # its name, for errors
    group: int  # inputs that share a scale; -1: all

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        if stored.holds(f"{name}.weight"):
            return super().weight(stored, name, shape)
        outputs, inputs = shape
        refuse_indivisible(self.model, name, "outputs", outputs, 8)
        codes = stored.packed(f"{name}.qweight", (inputs, outputs // 8), "I32")
        group = group_in(stored, self.model, f"{name}.scales", self.group, inputs)
        refuse_indivisible(self.model, name, "inputs", inputs, group)
        scales = stored.tensor(f"{name}.scales", (inputs // group, outputs))
        zeros = stored.packed(f"{name}.qzeros", (inputs // group, outputs // 8), "I32")
        return integers(by_output(codes), by_output(zeros), scales.t().float(), group, 4, None)

    def weights_per_element(self, name: str, kind: str) -> tuple[Form | None, int]:
        if name.endswith(".qweight"):
            return "int4", 8
        return None, 0 if name.endswith((".qzeros", ".scales")) else 1

    def settings(self) -> bytes:
        return f"awq {self.group}".encode()


def by_output(words: Tensor) -> Tensor:
    """Unpacks words int32 `[rows, out / 8]` to codes uint8 `[out, rows]`."""
    in_words = unpacked(words, 4).view(len(words), -1, 8)
    return in_words[:, :, OUTPUT_POSITIONS].flatten(1).t().contiguous()


def read_awq(config: dict[str, Any], model: str) -> Awq:
    version = config.get("version") or config.get("checkpoint_format") or config.get("format") or "gemm"
    supported_word(str(version).lower(), model, "AWQ's version", ("gemm",))
    if config.get("backend") == "llm-awq":
        raise ModelError(f"{model}: AWQ's backend llm-awq is not supported; supported: version gemm of AutoAWQ")
    bits_of(config, model, "AWQ", (4,), "bits", "w_bit")
    return Awq(model, group_of(config, model, "group_size", "q_group_size"))
