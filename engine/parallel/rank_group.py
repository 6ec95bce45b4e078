"""The tensor-parallel ranks that compute one model together, and the collective operations between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.parallel.shard import Shard


class Collective(Protocol):
    """Operations that all ranks begin in the same order. Raises `RankError` if a rank is gone or hangs."""

    def all_reduce(self, own: Tensor) -> Tensor:
        """Returns the sum of all ranks' tensors `own`, which have one shape; the result may be in the memory of `own`.

        All ranks get the same bits. The order of additions is that of `engine.parallel.sums`, except on GPUs without
        `--deterministic`.
        """
        ...

    def shared_buffer(self, numbers: int) -> Tensor | None:
        """Returns memory `[numbers]`, fp32, that the other ranks can read, for this rank's part of the next sum.

        None: ranks share no memory, or not for so many numbers; then only `all_reduce` can sum.
        """
        ...

    def shared_parts(self, numbers: int) -> list[Tensor]:
        """Waits until all ranks have filled their shared buffers; returns these, valid until the next operation."""
        ...

    def all_gather(self, own: Tensor, widths: Sequence[int]) -> Tensor:
        """Returns all ranks' columns side by side, `[rows, sum(widths)]`; `own` is `[rows, widths[rank]]`."""
        ...

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Returns rank 0's tensor on every rank; the other ranks give a tensor of its shape and format."""
        ...

    def barrier(self) -> None:
        """Waits until all ranks have called this, and their work before it is done; on a GPU the stream waits."""
        ...


class NoSharedBuffers:
    """The part of a `Collective` whose ranks cannot read each other's memory."""

    def shared_buffer(self, numbers: int) -> Tensor | None:
        return None

    def shared_parts(self, numbers: int) -> list[Tensor]:
        raise AssertionError("these ranks share no memory")


class SingleRank(NoSharedBuffers):
    """The collective of a single rank."""

    def all_reduce(self, own: Tensor) -> Tensor:
        return own

    def all_gather(self, own: Tensor, widths: Sequence[int]) -> Tensor:
        return own

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor

    def barrier(self) -> None:
        return


@dataclass(frozen=True)
class RankGroup:
    """This rank's shard of the model, and its collective operations with the other ranks."""

    shard: Shard
    collective: Collective

    @property
    def is_divided(self) -> bool:
        """Returns whether the model is divided among several ranks."""
        return self.shard.ranks > 1


ONE_RANK = RankGroup(Shard(), SingleRank())
