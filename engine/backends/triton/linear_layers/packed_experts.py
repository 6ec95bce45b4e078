"""Gathers one product of all of a layer's experts on a GPU: packed if all weights have the same quantization."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from contracts.kinds import Activations
from engine.backends.triton.linear_layers.quantized import coded, form_of, meets_bytes, packs
from engine.model.quantized import Weight, dequantized
from kernels.moe.expert_products import Expert
from kernels.moe.packed_products import PackedExpert
from kernels.quantized.dequantize import dequantize
from kernels.quantized.packed import INT4_ZERO_CODE, PackedWeight, one_of, pack, with_offsets


class Gathering:
    """Takes one expert after the other, and stores each directly in the layout of the whole product.

    The first expert decides: packed or floats. All become floats if a later expert has another quantization.
    """

    def __init__(
        self,
        experts: int,
        sizes: tuple[int, int],
        bias: bool,
        device: torch.device,
        dtype: torch.dtype,
        activations: Activations,
    ) -> None:
        """`sizes` are an expert's outputs and inputs; `activations` are as in `make_linear`."""
        self._experts, self._sizes, self._device, self._dtype = experts, sizes, device, dtype
        self._activations: Activations = activations
        self._meets_bytes = True
        self._packed: PackedWeight | None = None
        self._numbers: Tensor | None = None
        self._bias = torch.empty((experts, sizes[0]), dtype=dtype, device=device) if bias else None

    def take(self, expert: int, parts: Sequence[Weight], bias: Tensor | None) -> None:
        """Copies an expert's parts, one below the other, to their place."""
        if self._bias is not None and bias is not None:
            self._bias[expert] = bias
        packed = self._pack(parts) if self._numbers is None else None
        self._meets_bytes &= meets_bytes(parts, self._dtype, self._activations)
        if packed is not None and expert == 0:
            self._packed = _allocated(packed, self._experts)
        if packed is not None and self._packed is not None and _alike(packed, self._packed):
            self._packed = _widened_for(self._packed, packed)
            _store_expert(self._packed, expert, packed)
            return
        if self._numbers is None:
            self._numbers = self._as_floats(expert)
            self._packed = None
        begin = 0
        for part in parts:
            self._numbers[expert, begin : begin + len(part)] = dequantized(part)
            begin += len(part)

    def product(self) -> Expert | PackedExpert:
        """Returns the product, once all experts were taken."""
        if self._packed is not None:
            return PackedExpert(self._packed, self._bias, form_of(self._packed) if self._meets_bytes else None)
        assert self._numbers is not None
        return Expert(self._numbers, self._bias)

    def _pack(self, parts: Sequence[Weight]) -> PackedWeight | None:
        """Packs an expert's parts; None if a part cannot be packed, or has another kind."""
        if not all(map(packs, parts)):
            return None
        weights = [coded(part) for part in parts]
        ordered = any(getattr(part, "order", None) is not None for part in parts)
        same = len({(weight.kind, weight.group) for weight in weights}) == 1
        return pack(weights, self._device) if same and not ordered else None

    def _as_floats(self, taken: int) -> Tensor:
        """Allocates floats for all experts, and copies the experts taken so far."""
        found = torch.empty((self._experts, *self._sizes), dtype=self._dtype, device=self._device)
        for expert in range(taken):
            assert self._packed is not None
            found[expert] = dequantize(one_of(self._packed, expert), self._dtype)
        return found


def _alike(one: PackedWeight, all_of_them: PackedWeight) -> bool:
    return (one.kind, one.group, one.inputs) == (all_of_them.kind, all_of_them.group, all_of_them.inputs)


def _allocated(packed: PackedWeight, experts: int) -> PackedWeight:
    """Allocates memory for `experts` weights like this one."""

    def of_all(tensor: Tensor) -> Tensor:
        return tensor.new_zeros((experts, *tensor.shape))

    offsets = None if packed.offsets is None else of_all(packed.offsets)
    return replace(packed, codes=of_all(packed.codes), scales=of_all(packed.scales), offsets=offsets)


def _widened_for(all_experts: PackedWeight, packed: PackedWeight) -> PackedWeight:
    """Returns the same, with zeros or offsets if any weight has some, and in fp32 if 16-bit formats differ."""
    if packed.offsets is not None and not packed.has_zeros:
        all_experts = with_offsets(all_experts)
    offsets = all_experts.offsets
    if offsets is None and packed.offsets is not None:
        offsets = torch.full_like(
            all_experts.scales, INT4_ZERO_CODE if packed.has_zeros else 0, dtype=packed.offsets.dtype
        )
    if offsets is not None and packed.offsets is not None and offsets.dtype != packed.offsets.dtype:
        offsets = offsets.float()
    scales = all_experts.scales if all_experts.scales.dtype == packed.scales.dtype else all_experts.scales.float()
    return replace(all_experts, scales=scales, offsets=offsets, by_block=all_experts.by_block and packed.by_block)


def _store_expert(all_experts: PackedWeight, expert: int, packed: PackedWeight) -> None:
    all_experts.codes[expert], all_experts.scales[expert] = packed.codes, packed.scales
    offsets = (packed if all_experts.has_zeros else with_offsets(packed)).offsets
    if all_experts.offsets is not None:
        all_experts.offsets[expert] = (INT4_ZERO_CODE if all_experts.has_zeros else 0) if offsets is None else offsets
