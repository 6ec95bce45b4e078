"""Arguments of native latent attention: its weights, and the buffers of a step."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.backends.native.latent_forms import LatentForms, expanded_values
from engine.backends.native.library import DTYPE_CODES, LatentArguments, LatentBufferArguments, LinearArguments
from engine.backends.native.linear_layers.linear import NativeLinear
from engine.model.config import LatentAttention
from engine.model.layers.latent import LatentWeights


class NativeLatentProducts:
    """See `engine.model.layers.linear.LatentProducts`. Each head's weights are packed for each product of the forms."""

    def __init__(
        self, keys: Sequence[NativeLinear], values: Sequence[NativeLinear], building: Sequence[NativeLinear]
    ) -> None:
        self._keys = keys
        self._values = values
        self._building = building
        self.keys = (LinearArguments * len(keys))(*(linear.arguments for linear in keys))
        self.values_of = (LinearArguments * len(values))(*(linear.arguments for linear in values))
        self.building = (LinearArguments * len(building))(*(linear.arguments for linear in building))

    def absorbed(self, queries: Tensor) -> Tensor:
        nope = self.keys[0].inputs
        own = [linear(queries[:, head, :nope]) for head, linear in enumerate(self._keys)]
        return torch.cat((torch.stack(own, 1), queries[..., nope:]), -1)

    def values(self, attended: Tensor) -> Tensor:
        return torch.stack([linear(attended[:, head]) for head, linear in enumerate(self._values)], 1)

    def expanded(self, latents: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        assert self._building, "in this format no work is expanded"
        built = ([linear(latents) for linear in each[heads]] for each in (self._building, self._values))
        keys, values = (torch.stack(each, 1) for each in built)
        return keys, values

    def held(self) -> list[Tensor]:
        return [tensor for linear in (*self._keys, *self._values, *self._building) for tensor in linear.held()]


class LatentBuffers:
    """Buffers between the operators of latent attention, for up to `tokens` tokens of layers like these."""

    def __init__(self, tokens: int, attentions: Sequence[LatentAttention], dtype: torch.dtype) -> None:
        def most(*widths: int) -> Tensor:
            return torch.empty(tokens * max(widths), dtype=dtype)

        self._tensors = {
            "queries": most(*(each.heads * (each.nope_dim + each.rope_dim) for each in attentions)),
            "absorbed": most(*(each.heads * (each.latent_rank + each.rope_dim) for each in attentions)),
            "sums": most(*(each.heads * each.latent_rank for each in attentions)),
        }
        self._dtype = dtype
        self.arguments = LatentBufferArguments(**{name: tensor.data_ptr() for name, tensor in self._tensors.items()})

    def prepare(self, forms: LatentForms, attention: LatentAttention) -> None:
        """Sets how the sequences of a step attend, and grows the buffers for expanded keys and values."""
        self._forms = forms
        arguments = self.arguments
        arguments.absorbing, arguments.absorbing_count = forms.absorbing, len(forms.absorbing)
        arguments.expansions, arguments.expansion_count = forms.expansions, len(forms.expansions)
        needed = {
            "vectors": forms.longest * (attention.latent_rank + attention.rope_dim),
            "built": expanded_values(attention, forms.longest),
        }
        for name, count in needed.items():
            if name not in self._tensors or self._tensors[name].numel() < count:
                self._tensors[name] = torch.empty(count, dtype=self._dtype)
                setattr(arguments, name, self._tensors[name].data_ptr())


def latent_arguments(
    weights: LatentWeights[NativeLinear], attention: LatentAttention, dtype: torch.dtype
) -> LatentArguments:
    """Returns the arguments of a layer's latent attention; the weights have to outlive them."""
    assert isinstance(weights.products, NativeLatentProducts)
    return LatentArguments(
        format=DTYPE_CODES[dtype],
        heads=attention.heads,
        query_rank=attention.query_rank,
        latent_rank=attention.latent_rank,
        rope_dim=attention.rope_dim,
        nope_dim=attention.nope_dim,
        value_dim=attention.value_dim,
        eps=attention.norm_eps,
        query_norm=None if weights.query_norm is None else weights.query_norm.data_ptr(),
        norm=weights.norm.data_ptr(),
        query=None if weights.query is None else ctypes.addressof(weights.query.arguments),
        keys=ctypes.addressof(weights.products.keys),
        values=ctypes.addressof(weights.products.values_of),
        building=ctypes.addressof(weights.products.building),
    )
