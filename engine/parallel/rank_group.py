"""The ranks that compute one model together, and what they tell each other during a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.parallel.shard import Shard


class Collective(Protocol):
    """Operations that all ranks begin in the same order. Raises `RankError` if a rank is gone or hangs."""

    def sum(self, own: Tensor) -> Tensor:
        """Returns the sum of all ranks' tensors of one shape. It may be `own`, and is the same on all ranks.

        It is added as in `engine.parallel.sums`, unless ranks on GPUs are not asked for deterministic sums.
        """
        ...

    def gather(self, own: Tensor, widths: Sequence[int]) -> Tensor:
        """Concatenates all ranks' columns: `[rows, sum(widths)]` of `own` `[rows, widths[rank]]`."""
        ...

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Returns rank 0's tensor on every rank; all ranks give a tensor of its shape and format."""
        ...

    def meet(self) -> None:
        """Lets this rank go on when all ranks have come here, and what they did before is done."""
        ...


class Alone:
    """The collective of a single rank."""

    def sum(self, own: Tensor) -> Tensor:
        return own

    def gather(self, own: Tensor, widths: Sequence[int]) -> Tensor:
        return own

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor

    def meet(self) -> None:
        return


@dataclass(frozen=True)
class RankGroup:
    """This rank's shard, and the way to the other ranks."""

    shard: Shard
    collective: Collective

    @property
    def is_cut(self) -> bool:
        """Returns whether the model is divided among several ranks."""
        return self.shard.ranks > 1


ONE_RANK = RankGroup(Shard(), Alone())
