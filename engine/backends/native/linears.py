"""Makes linear layers, and what is made of several of them, for the native operators."""

import ctypes
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from engine.backends.native.adapted import NativeAdapted
from engine.backends.native.experts import NativeExperts
from engine.backends.native.latent import NativeLatentProducts
from engine.backends.native.latent_forms import expands_in
from engine.backends.native.linear import CPU, NativeLinear
from engine.model.adapted import Adapting
from engine.model.config import ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from engine.model.linear import stacked
from engine.model.quantized import Form, Quantized, Weight


class NativeLinears:
    """See `engine.model.linear.Linears`. Of quantized weights, int8 with a scale for each output stay so."""

    forms: frozenset[Form] = frozenset({"int8"})

    def __init__(self, native: ctypes.CDLL, dtype: torch.dtype) -> None:
        self._native = native
        self._dtype = dtype

    def fused(self, weights: Sequence[Weight], bias: Tensor | None, adapting: Adapting | None = None) -> NativeLinear:
        """See `Linears.fused`."""
        scales: Tensor | None = None
        whole = [weight for weight in weights if isinstance(weight, Quantized) and _by_outputs(weight)]
        if len(whole) == len(weights):
            weight = torch.cat([each.values for each in whole])
            scales = torch.cat([each.scales.flatten() for each in whole])
        else:
            weight = stacked(weights, CPU, self._dtype)
        if adapting is None:
            return NativeLinear(self._native, weight, bias, scales, self._dtype)
        return NativeAdapted(self._native, weight, bias, scales, self._dtype, adapting)

    def of_held(self, weight: Tensor) -> NativeLinear:
        return NativeLinear(self._native, weight, None)

    def experts(self, mlp: ExpertsMLP, hidden: int, tensors: Iterable[ExpertTensors]) -> NativeExperts:
        products = [(self.fused(e.gate_up, e.gate_up_bias), self.fused([e.down], e.down_bias)) for e in tensors]
        return NativeExperts(self._native, mlp, hidden, self._dtype, products)

    def latent(self, keys: Tensor, values: Tensor) -> NativeLatentProducts:
        absorbing = [self.fused([part.T.contiguous()], None) for part in keys]
        made = [self.fused([part.contiguous()], None) for part in values]
        built = [self.fused([part.contiguous()], None) for part in keys] if expands_in(self._dtype) else []
        return NativeLatentProducts(absorbing, made, built)


def _by_outputs(weight: Quantized) -> bool:
    """Tells whether each output has one scale, and nothing but that."""
    one = weight.form == "int8" and weight.group >= weight.shape[1]
    return one and weight.offsets is None and weight.order is None
