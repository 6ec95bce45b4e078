"""Makes linear layers out of a checkpoint's tensors, by way of the backend that will multiply by them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Generic, cast

import torch
from torch import Tensor

from contracts.kinds import Quantization
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import ExpertsMLP, LatentAttention
from engine.model.families.expert_tensors import ExpertTensors, ReadExpert
from engine.model.layers.adapted import Adaptable, AdapterTarget, Adapting
from engine.model.layers.linear import AnyLinear, Experts, LatentProducts, Linears, LinearWeights
from engine.model.layers.tensor_parallel import (
    OtherRankTensors,
    ParallelExperts,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from engine.model.quantization import of_head, quantized
from engine.model.quantized import Form, Quantized, Weight, columns, dequantized, rows, stacked, times
from engine.parallel.rank_group import ONE_RANK, RankGroup
from engine.parallel.shard import length, scaled
from engine.parallel.sums import WHOLE_SUM, SumOrder, split_sum

EVERY_ROW = slice(None)
SCALED_BY_OUTPUT: frozenset[Quantization] = frozenset({"int8", "fp8"})
"""Quantizations with one scale for all inputs of an output."""


class LinearFactory(Generic[AnyLinear]):
    """Makes the linear layers of one model out of its checkpoint."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        linears: Linears[AnyLinear],
        device: torch.device,
        dtype: torch.dtype,
        adapting: Adapting | None = None,
        quantization: Quantization = "none",
        group: RankGroup = ONE_RANK,
    ) -> None:
        """Unquantized weights are quantized unless `quantization` is "none".

        With `adapting`, adapters can change the layers made as `adaptable`, which are listed in `adapter_targets`. Of a
        model divided among a `group` of ranks, this rank's shard is made, by the rules in `engine.model.sharding`.
        """
        self.adapting = adapting
        self.group = group
        self.adapter_targets: list[tuple[AdapterTarget, Adaptable]] = []
        self.quantized: Counter[Form] = Counter()  # values of the weights that were made, by form; numbers are in none
        self._checkpoint = checkpoint
        self._linears = linears
        self._device = device
        self._dtype = dtype
        self._quantization = quantization

    def linear(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        inputs: int,
        bias: bool = False,
        *,
        scale: float = 1.0,
        order: Tensor | None = None,
        adaptable: bool = False,
        is_head: bool = False,
        held: Sequence[slice] | None = None,
        sum_unit: int = 0,
    ) -> AnyLinear:
        """Fuses the layers `names`, with `sizes` outputs each, into one layer with concatenated outputs.

        A single name with several sizes is fused in the checkpoint already. All outputs are multiplied by `scale`.
        `order`, int64 `[outputs of all]`, is the index in the checkpoint of each of the layer's outputs. `held` are the
        outputs of each size that this rank holds; None: all. A product's sum over inputs may be split at multiples of
        `sum_unit` inputs; 0: nowhere. Raises `ModelError` if a tensor is missing or has another shape.
        """
        sized = list(zip(names, sizes, strict=True)) if len(names) > 1 else [(names[0], sum(sizes))]
        chosen = _outputs([size for _, size in sized], sizes, order, held if self.group.is_divided else None)
        offset = None
        if bias:
            offsets = [self._checkpoint.tensor(f"{name}.bias", (size,)) for name, size in sized]
            offset = stacked(_changed(offsets, scale, chosen), self._device, self._dtype)
        read = [self._checkpoint.weight(name, (size, inputs)) for name, size in sized]
        quantization = of_head(self._quantization) if is_head else self._quantization
        weights = [self._quantized(weight, quantization) for weight in _changed(read, scale, chosen)]
        sums = self._split(weights[0], inputs, sum_unit) if sum_unit else WHOLE_SUM
        if not adaptable:
            return self._fused(LinearWeights(weights, offset, order=sums), None)
        own = tuple(len(torch.arange(size)[part]) for (_, size), part in zip(sized, chosen, strict=True))
        shapes = tuple((size, inputs) for _, size in sized)
        target = AdapterTarget(tuple(names), own, inputs, scale, shapes, tuple(chosen), EVERY_ROW)
        return self._fused(LinearWeights(weights, offset, order=sums), target)

    def row_parallel(
        self,
        name: str,
        outputs: int,
        inputs: int,
        units: int,
        bias: bool = False,
        *,
        scale: float = 1.0,
        adaptable: bool = False,
    ) -> AnyLinear:
        """Makes a layer whose inputs, `units` of equal size, are divided among the ranks.

        The ranks' products are summed, and multiplied by `scale`. Raises `ModelError` if a tensor is missing, has
        another shape, or a group of its quantization crosses a boundary between ranks.
        """
        group = self.group
        if not group.is_divided:
            return self.linear(
                [name], [outputs], inputs, bias, scale=scale, adaptable=adaptable, sum_unit=inputs // units
            )
        (whole,) = _changed([self._checkpoint.weight(name, (outputs, inputs))], scale, [EVERY_ROW])
        offset = None
        if bias:
            offsets = [self._checkpoint.tensor(f"{name}.bias", (outputs,))]
            offset = stacked(_changed(offsets, scale, [EVERY_ROW]), self._device, self._dtype)
        held = scaled(group.shard.part(units), inputs // units)
        if isinstance(whole, Tensor) and self._quantization not in SCALED_BY_OUTPUT:
            weight = self._quantized(whole[:, held], self._quantization)
        else:  # an output's scale is that of all its inputs
            weight = columns(self._quantized(whole, self._quantization), held, name)
        target = AdapterTarget((name,), (outputs,), length(held), scale, ((outputs, inputs),), (EVERY_ROW,), held)
        sums = self._split(weight, inputs, inputs // units)
        local = self._fused(LinearWeights([weight], order=sums), target if adaptable else None)
        linear: Any = RowParallelLinear(local, offset, group.collective)
        return cast(AnyLinear, linear)

    def _fused(self, weights: LinearWeights, target: AdapterTarget | None) -> AnyLinear:
        """Makes one layer, which adapters may change if it has a `target`."""
        if self.adapting is None or target is None:
            return self._linears.fused(weights)
        linear = self._linears.fused(replace(weights, adapting=self.adapting))
        changed: Any = linear  # `Adaptable`, as `fused` promises
        self.adapter_targets.append((target, changed))
        return linear

    def _split(self, weight: Weight, inputs: int, unit: int) -> SumOrder:
        """Returns the order of the sum over this rank's `weight` of a layer with `inputs`."""
        groups = (weight.group,) if isinstance(weight, Quantized) and weight.group < inputs else ()
        return split_sum(inputs, unit, *groups, ranks=self.group.shard.ranks)

    def _quantized(self, weight: Weight, quantization: Quantization) -> Weight:
        if isinstance(weight, Tensor) and quantization != "none":
            weight = quantized(weight.to(self._device), quantization)
        if isinstance(weight, Quantized):
            self.quantized[weight.form] += weight.values.numel()
        return weight

    def head_of(self, embedding: Tensor) -> AnyLinear:
        """Makes the head tied to the embedding, which is loaded already and stays unchanged."""
        if self._quantization == "none":
            return self._linears.of_held(embedding)
        return self._linears.fused(LinearWeights([self._quantized(embedding, of_head(self._quantization))]))

    def latent(self, name: str, attention: LatentAttention) -> LatentProducts:
        """Makes the products of latent attention from a tensor with each head's key part followed by its value part.

        Raises `ModelError` if it is missing or has another shape.
        """
        heads, nope, width = attention.heads, attention.nope_dim, attention.nope_dim + attention.value_dim
        held = scaled(self.group.shard.part(heads), width)
        weight = dequantized(rows(self._checkpoint.weight(name, (heads * width, attention.latent_rank)), held))
        parts = weight.view(-1, width, attention.latent_rank)
        return self._linears.latent(parts[:, :nope], parts[:, nope:])

    def embedding(self, name: str, tokens: int, hidden: int) -> VocabParallelEmbedding:
        """Loads this rank's part of the embeddings `[tokens, hidden]`.

        Raises `ModelError` if the tensor is missing or has another shape.
        """
        held = self._checkpoint.tensor(name, (tokens, hidden))[self.group.shard.part(tokens)]
        return VocabParallelEmbedding(stacked([held], self._device, self._dtype), tokens, self.group)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Loads a tensor other than a linear layer, in the model's format and on its device.

        Raises `ModelError` if it is missing or has another shape.
        """
        return stacked([self._checkpoint.tensor(name, shape)], self._device, self._dtype)

    def experts(self, mlp: ExpertsMLP, hidden: int, prefix: str, read: ReadExpert, *, scale: float = 1.0) -> Experts:
        """Makes the experts of the layer whose tensors begin with `prefix`; their outputs are multiplied by `scale`.

        Raises `ModelError` if a tensor is missing or has another shape.
        """
        shard = self.group.shard
        held = shard.part(mlp.experts)
        numbers = range(held.start, held.stop)
        prepared = (self._prepared(read(self._checkpoint, prefix, mlp, hidden, each), scale) for each in numbers)
        experts = self._linears.experts(mlp, hidden, prepared, held if self.group.is_divided else None)
        for other in {*range(mlp.experts)} - {*numbers}:
            read(OtherRankTensors(self._checkpoint), prefix, mlp, hidden, other)
        return ParallelExperts(experts, held, self.group.collective) if self.group.is_divided else experts

    def _prepared(self, expert: ExpertTensors, scale: float) -> ExpertTensors:
        def bias(stored: Tensor | None, scale: float) -> Tensor | None:
            if stored is None:
                return None
            return stacked([stored if scale == 1.0 else stored.float() * scale], self._device, self._dtype)

        (down,) = _changed([expert.down], scale, [EVERY_ROW])
        gate_up = tuple(self._quantized(part, self._quantization) for part in expert.gate_up)
        biases = bias(expert.gate_up_bias, 1.0), bias(expert.down_bias, scale)
        return ExpertTensors(gate_up, self._quantized(down, self._quantization), *biases)

    def exact(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Loads a tensor as fp32, whatever the model's format, on its device.

        Raises `ModelError` if it is missing or has another shape.
        """
        return stacked([self._checkpoint.tensor(name, shape)], self._device, torch.float32)

    def norm(self, name: str, width: int, offset: float = 0.0) -> Tensor:
        """Loads the weight of a norm and adds `offset`, fp32 `[width]`: with one, bf16 would lose half of its digits.

        Raises `ModelError` where the checkpoint lacks it or has another shape.
        """
        return self.exact(f"{name}.weight", (width,)) + offset


def _outputs(
    lengths: Sequence[int], sizes: Sequence[int], order: Tensor | None, held: Sequence[slice] | None
) -> list[Tensor | slice]:
    """Returns the outputs to take of each tensor, whose `lengths` are known, in the order of the layer's outputs.

    The layer's outputs are of `sizes`, of each of which `held` are kept. An order moves no output from one tensor to
    another.
    """
    if order is None and held is None:
        return [EVERY_ROW] * len(lengths)
    if order is None and held is not None and len(lengths) == len(sizes):
        return list(held)
    index = torch.arange(sum(sizes)) if order is None else order
    if held is not None:
        kept = zip(index.split(list(sizes)), held, strict=True)
        index = torch.cat([of_size[part] for of_size, part in kept])
    firsts = accumulate(lengths[:-1], initial=0)
    return [
        index[(index >= first) & (index < first + count)] - first for first, count in zip(firsts, lengths, strict=True)
    ]


def _changed(weights: Sequence[Weight], scale: float, outputs: Sequence[Tensor | slice]) -> list[Weight]:
    """Returns the chosen `outputs` of each part of a layer, or of their biases, multiplied by `scale`."""
    chosen = [weight if own is EVERY_ROW else rows(weight, own) for weight, own in zip(weights, outputs, strict=True)]
    return [weight if scale == 1.0 else times(weight, scale) for weight in chosen]
