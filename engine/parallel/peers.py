"""The interface by which rank 0 has the other ranks of its group make the same steps."""

from collections.abc import Sequence
from typing import Protocol

from engine.parallel.device_handle import DeviceHandle
from engine.plan import BlockMove, StepPlan, StepResult, TreeKVMoves


class Peers(Protocol):
    """The other ranks, as rank 0 sees them. Raises `RankError` if a rank is gone."""

    def make_pool(self, counts: Sequence[int], sizes: Sequence[int], slots: int) -> list[list[int]]:
        """Lets each rank make a new pool with `counts` blocks by KV group, and use it from now on.

        Each rank's host tier has `slots` for its part of blocks; 0: there is none. Returns descriptors of each rank's
        memory, of `sizes` bytes by KV group, which this rank is to map, too.
        """
        ...

    def make_device_pool(self, counts: Sequence[int], slots: int) -> list[list[DeviceHandle]]:
        """Does the same on GPUs. Returns handles of each rank's memory by KV group, which this rank is to open."""
        ...

    def least_spare(self) -> int:
        """Returns the bytes for KV blocks on the GPU of the rank that has least."""
        ...

    def move(self, moves: Sequence[BlockMove]) -> None: ...

    def move_tokens(self, moves: Sequence[TreeKVMoves]) -> None: ...

    def record(self, longest: int) -> None:
        """Lets each rank record decode steps of texts of up to `longest` tokens, as this rank does next."""
        ...

    def launch(self, plan: StepPlan, recorded: bool) -> None:
        """`recorded`: whether a recorded step computes the plan."""
        ...

    def propose(self, result: StepResult) -> None:
        """Lets each rank run its part of the proposer, if it has one, after a step; then waits for all ranks."""
        ...


class NoPeers:
    """The peers of a model on one rank."""

    def make_pool(self, counts: Sequence[int], sizes: Sequence[int], slots: int) -> list[list[int]]:
        return []

    def make_device_pool(self, counts: Sequence[int], slots: int) -> list[list[DeviceHandle]]:
        return []

    def least_spare(self) -> int:
        raise AssertionError("there is no other rank")

    def move(self, moves: Sequence[BlockMove]) -> None:
        return

    def move_tokens(self, moves: Sequence[TreeKVMoves]) -> None:
        return

    def record(self, longest: int) -> None:
        return

    def launch(self, plan: StepPlan, recorded: bool) -> None:
        return

    def propose(self, result: StepResult) -> None:
        return


NO_PEERS = NoPeers()
