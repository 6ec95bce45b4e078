"""Makes the linear layers of the native operators, and experts and latent products from several of them."""

import ctypes
import logging
from collections.abc import Iterable

import torch
from torch import Tensor

from engine.backends.native.latent import NativeLatentProducts
from engine.backends.native.latent_forms import expands_in
from engine.backends.native.library import QUANTIZED_CODES
from engine.backends.native.linear_layers.adapted import NativeAdapted
from engine.backends.native.linear_layers.experts import NativeExperts
from engine.backends.native.linear_layers.linear import NativeLinear
from engine.backends.native.linear_layers.parts import without_operator
from engine.model.config import ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from engine.model.layers.linear import LinearWeights
from engine.model.quantized import Form, Weight

LOG = logging.getLogger(__name__)


class NativeLinears:
    forms: frozenset[Form] = frozenset(QUANTIZED_CODES)

    def __init__(self, native: ctypes.CDLL, dtype: torch.dtype) -> None:
        self._native = native
        self._dtype = dtype
        self._said: set[str] = set()

    def fused(self, weights: LinearWeights) -> NativeLinear:
        parts, bias, adapting, order = weights.parts, weights.bias, weights.adapting, weights.order
        for weight in parts:
            self._say(weight)
        if adapting is None:
            return NativeLinear(self._native, parts, bias, self._dtype, order)
        return NativeAdapted(self._native, parts, bias, self._dtype, adapting, order)

    def _say(self, weight: Weight) -> None:
        what = without_operator(weight)
        if what is not None and what not in self._said and what not in self.forms:
            self._said.add(what)
            LOG.info("native operators multiply %s as the numbers that they stand for", what)

    def of_held(self, weight: Tensor) -> NativeLinear:
        return NativeLinear(self._native, weight, None)

    def experts(
        self, mlp: ExpertsMLP, hidden: int, tensors: Iterable[ExpertTensors], held: slice | None = None
    ) -> NativeExperts:
        products = [
            (self.fused(LinearWeights(e.gate_up, e.gate_up_bias)), self.fused(LinearWeights([e.down], e.down_bias)))
            for e in tensors
        ]
        return NativeExperts(self._native, mlp, hidden, self._dtype, products, held)

    def latent(self, keys: Tensor, values: Tensor) -> NativeLatentProducts:
        absorbing = [self.fused(LinearWeights([part.T.contiguous()])) for part in keys]
        made = [self.fused(LinearWeights([part.contiguous()])) for part in values]
        built = [self.fused(LinearWeights([part.contiguous()])) for part in keys] if expands_in(self._dtype) else []
        return NativeLatentProducts(absorbing, made, built)
