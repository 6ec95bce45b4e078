"""Tensor-parallel layers (Megatron-LM, https://arxiv.org/abs/1909.08053): each rank computes its part with its weights.

    row-parallel linear     y = all_reduce(x[:, inputs of this rank] W[:, inputs of this rank]^T) + bias
    experts                 y = all_reduce(sum over the experts of this rank)
    embedding               y = all_reduce(rows of the tokens of this rank, 0 for other tokens)

Column-parallel layers need no code here: a rank's linear layer has its outputs, and nothing is exchanged behind it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from engine.model.checkpoint.weights import Checkpoint
from engine.model.layers.linear import Experts, Linear
from engine.parallel.rank_group import Collective, RankGroup
from engine.parallel.shard import length


class RowParallelLinear:
    """A linear layer whose inputs are divided among the ranks: x has this rank's inputs, y is the same on all ranks."""

    def __init__(self, local: Linear, bias: Tensor | None, collective: Collective) -> None:
        self.local = local
        self._bias = bias
        self._collective = collective

    def __call__(self, x: Tensor) -> Tensor:
        return self.reduced(self.local(x), x.dtype)

    def reduced(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns y `[rows, out]` in `dtype`, from this rank's `part` of the sum, which may be in fp32."""
        y = self._collective.all_reduce(part)
        return (y if self._bias is None else y + self._bias).to(dtype)

    def shared_buffer(self, rows: int, width: int) -> Tensor | None:
        """Returns memory for this rank's part, fp32 of `rows` x `width` numbers, which the other ranks read in place.

        A caller that fills it adds up `shared_parts` itself, instead of calling `reduced`. None: there is none.
        """
        return None if self._bias is not None else self._collective.shared_buffer(rows * width)

    def shared_parts(self, buffer: Tensor) -> list[Tensor]:
        """Returns each rank's part, from the shared buffers of the size of `buffer`."""
        return self._collective.shared_parts(buffer.numel())

    def held(self) -> list[Tensor]:
        return self.local.held() if self._bias is None else [*self.local.held(), self._bias]


class ParallelExperts:
    """A mixture of experts of which each rank holds some whole experts; a token's sum is over all ranks' experts."""

    def __init__(self, local: Experts, experts: slice, collective: Collective) -> None:
        """`experts` is the range of expert numbers that this rank holds, in `local`."""
        self.local = local
        self._first, self._count = experts.start, length(experts)
        self._collective = collective

    def __call__(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        number = chosen - self._first
        is_local = (number >= 0) & (number < self._count)
        part = self.local(x, torch.where(is_local, number, self._count).to(chosen.dtype), shares)
        return self.all_reduce(part).to(x.dtype)

    def all_reduce(self, part: Tensor) -> Tensor:
        """Returns the sum of all ranks' parts, which have one shape."""
        return self._collective.all_reduce(part)

    def held(self) -> list[Tensor]:
        return self.local.held()


class OtherRankTensors:
    """A checkpoint whose tensors have shapes but no data, by which the experts of other ranks are "read".

    Reading marks a tensor as used, so that `Checkpoint.refuse_unused` finds only tensors that no rank reads.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def holds(self, name: str) -> bool:
        return self._checkpoint.holds(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._checkpoint.shape(name)

    def weight(self, name: str, shape: tuple[int, int]) -> Tensor:
        return self.tensor(name, shape)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._checkpoint.pass_over(name)
        return torch.empty(shape, device="meta")

    def part(self, name: str, shape: tuple[int, ...], index: int, *, packed: bool = False) -> Tensor:
        dtype = torch.uint8 if packed else torch.float32
        return torch.empty(
            shape[1:], device="meta", dtype=dtype
        )  # the tensor has experts of this rank as well, which mark it


class VocabParallelEmbedding:
    """An embedding of which each rank has the rows of some tokens of the vocabulary."""

    def __init__(self, weight: Tensor, vocabulary: int, group: RankGroup) -> None:
        """`weight` `[tokens, hidden]` has this rank's part of the `vocabulary`."""
        self.weight = weight
        self._group = group
        self._first = group.shard.part(vocabulary).start

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Returns `[tokens, hidden]` of `token_ids` `[tokens]`."""
        if not self._group.is_divided:
            return functional.embedding(token_ids, self.weight)
        row = token_ids - self._first
        is_local = (row >= 0) & (row < len(self.weight))
        embedded = functional.embedding(torch.where(is_local, row, 0), self.weight)
        return self._group.collective.all_reduce(embedded * is_local[:, None])
