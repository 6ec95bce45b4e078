"""Makes linear layers, and what is made of several of them, for the native operators."""

import ctypes
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from core.config import Quantization
from engine.backends.native.adapted import NativeAdapted
from engine.backends.native.experts import NativeExperts
from engine.backends.native.latent import NativeLatentProducts
from engine.backends.native.linear import CPU, NativeLinear
from engine.model.adapted import Adapting
from engine.model.config import ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from engine.model.linear import stacked
from engine.model.quantization import quantized


class NativeLinears:
    """See `engine.model.linear.Linears`. The only ones that can quantize: int8 with a scale for each output."""

    def __init__(self, native: ctypes.CDLL, dtype: torch.dtype, quantization: Quantization) -> None:
        self._native = native
        self._dtype = dtype
        self._quantizes = quantization == "int8"

    def fused(self, weights: Sequence[Tensor], bias: Tensor | None, adapting: Adapting | None = None) -> NativeLinear:
        """Quantizes weights from the checkpoint's own format, not from the model's."""
        scales: Tensor | None = None
        if self._quantizes:
            pairs = [quantized(weight) for weight in weights]
            weight, scales = torch.cat([values for values, _ in pairs]), torch.cat([scale for _, scale in pairs])
        else:
            weight = stacked(weights, CPU, self._dtype)
        if adapting is None:
            return NativeLinear(self._native, weight, bias, scales, self._dtype)
        return NativeAdapted(self._native, weight, bias, scales, self._dtype, adapting)

    def of_held(self, weight: Tensor) -> NativeLinear:
        return self.fused([weight], None) if self._quantizes else NativeLinear(self._native, weight, None)

    def experts(self, mlp: ExpertsMLP, hidden: int, tensors: Iterable[ExpertTensors]) -> NativeExperts:
        products = [(self.fused(e.gate_up, e.gate_up_bias), self.fused([e.down], e.down_bias)) for e in tensors]
        return NativeExperts(self._native, mlp, hidden, self._dtype, products)

    def latent(self, keys: Tensor, values: Tensor) -> NativeLatentProducts:
        absorbing = [self.fused([part.T.contiguous()], None) for part in keys]
        made, built = ([self.fused([part.contiguous()], None) for part in parts] for parts in (values, keys))
        return NativeLatentProducts(absorbing, made, built)
