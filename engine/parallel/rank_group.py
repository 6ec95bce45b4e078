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

    def room(self, numbers: int) -> Tensor | None:
        """Returns memory for this rank's fp32 part of the next sum, which other ranks read there.

        None: there is no such memory for this many numbers, and `sum` takes the part from any memory.
        """
        ...

    def parts(self, numbers: int) -> list[Tensor]:
        """Returns all ranks' parts, which each has put in its `room`; they are valid until the next operation."""
        ...

    def gather(self, own: Tensor, widths: Sequence[int]) -> Tensor:
        """Concatenates all ranks' columns: `[rows, sum(widths)]` of `own` `[rows, widths[rank]]`."""
        ...

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Returns rank 0's tensor on every rank; all ranks give a tensor of its shape and format."""
        ...

    def meet(self) -> None:
        """Waits until all ranks have called this, and all that they did before is done."""
        ...


class NoRoom:
    """Base of collectives whose ranks cannot read each other's memory."""

    def room(self, numbers: int) -> Tensor | None:
        return None

    def parts(self, numbers: int) -> list[Tensor]:
        raise AssertionError("there is no room of which another rank reads")


class Alone(NoRoom):
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
