"""Layers of which each rank of a tensor-parallel group holds a part, and whose results are summed over the ranks."""

import torch
from torch import Tensor
from torch.nn import functional

from engine.model.checkpoint.weights import Checkpoint
from engine.model.layers.linear import Experts, Linear
from engine.parallel.rank_group import Collective, RankGroup
from engine.parallel.shard import length


class SummedLinear:
    """A linear layer whose inputs are divided among the ranks: x is this rank's part, y is whole on every rank."""

    def __init__(self, own: Linear, bias: Tensor | None, collective: Collective) -> None:
        self.own = own
        self._bias = bias
        self._collective = collective

    def __call__(self, x: Tensor) -> Tensor:
        return self.finished(self.own(x), x.dtype)

    def finished(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns y from what this rank's layer gives: in fp32, if the backend does not round a rank's part."""
        y = self._collective.sum(part)
        return (y if self._bias is None else y + self._bias).to(dtype)

    def room(self, rows: int, width: int) -> Tensor | None:
        """Returns memory for this rank's part, fp32 `[rows, width]`, that saves a copy; None without any.

        Its sum is then made of `parts` instead of by `finished`.
        """
        return None if self._bias is not None else self._collective.room(rows * width)

    def parts(self, room: Tensor) -> list[Tensor]:
        """Returns all ranks' parts, each in its own room."""
        return self._collective.parts(room.numel())

    def held(self) -> list[Tensor]:
        return self.own.held() if self._bias is None else [*self.own.held(), self._bias]


class RankExperts:
    """Experts of which each rank holds some; a token's sum is over the experts of all ranks."""

    def __init__(self, own: Experts, experts: slice, collective: Collective) -> None:
        """`experts` are the numbers of this rank's `own` among all."""
        self.own = own
        self._first, self._count = experts.start, length(experts)
        self._collective = collective

    def __call__(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        local = chosen - self._first
        is_own = (local >= 0) & (local < self._count)
        part = self.own(x, torch.where(is_own, local, self._count).to(chosen.dtype), shares)
        return self.summed(part).to(x.dtype)

    def summed(self, parts: Tensor) -> Tensor:
        """Returns the sum over all ranks of a tensor of their parts."""
        return self._collective.sum(parts)

    def held(self) -> list[Tensor]:
        return self.own.held()


class PassedOver:
    """Stands for a checkpoint while another rank's expert is read: its tensors count as used, and have no numbers."""

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
        return torch.empty(shape[1:], device="meta", dtype=dtype)  # of a tensor that has this rank's experts, too


class RankEmbedding:
    """The embeddings of a vocabulary that is divided among the ranks."""

    def __init__(self, weight: Tensor, vocabulary: int, group: RankGroup) -> None:
        """`weight` `[tokens, hidden]` has this rank's part of the `vocabulary`."""
        self.weight = weight
        self._group = group
        self._first = group.shard.part(vocabulary).start

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Returns `[tokens, hidden]` of `token_ids` `[tokens]`."""
        if not self._group.is_cut:
            return functional.embedding(token_ids, self.weight)
        local = token_ids - self._first
        is_own = (local >= 0) & (local < len(self.weight))
        found = functional.embedding(torch.where(is_own, local, 0), self.weight)
        return self._group.collective.sum(found * is_own[:, None])
