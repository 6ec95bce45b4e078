"""Multiplies by the key and value parts of latent attention with PyTorch operators, on any device."""

import torch
from torch import Tensor
from torch.nn import functional


class ReferenceLatentProducts:
    """See `engine.model.layers.linear.LatentProducts`. One copy of the weights serves both forms."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        """Takes `[heads, nope, latent]` and `[heads, value, latent]`, contiguous."""
        self._keys = keys
        self._values = values

    def absorbed(self, queries: Tensor) -> Tensor:
        nope = self._keys.shape[1]
        own = torch.bmm(queries[..., :nope].transpose(0, 1), self._keys)  # [heads, tokens, latent]
        return torch.cat((own.transpose(0, 1), queries[..., nope:]), -1)

    def values(self, attended: Tensor) -> Tensor:
        return torch.bmm(attended.transpose(0, 1), self._values.transpose(1, 2)).transpose(0, 1)

    def expanded(self, latents: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        keys, values = self._keys[heads], self._values[heads]
        return _built(latents, keys), _built(latents, values)

    def held(self) -> list[Tensor]:
        return [self._keys, self._values]


def _built(latents: Tensor, weights: Tensor) -> Tensor:
    """Returns `[tokens, heads, width]` of `latents` `[tokens, latent]` and `weights` `[heads, width, latent]`."""
    built: Tensor = functional.linear(latents, weights.flatten(0, 1))
    return built.view(latents.shape[0], *weights.shape[:2])
