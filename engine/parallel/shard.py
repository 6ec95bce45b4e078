"""The part of a model that one rank of a tensor-parallel group holds (Megatron-LM, https://arxiv.org/abs/1909.08053).

A rank holds some heads of each attention, some inner values of each MLP, some experts, and some tokens of the
vocabulary. Norms, routers and hidden states are whole on every rank.
"""

from msgspec import Struct


class Shard(Struct, frozen=True):
    """One rank of `ranks`."""

    rank: int = 0
    ranks: int = 1

    def part(self, count: int) -> slice:
        """Returns this rank's range of `count` items; the ranks' ranges differ in length by at most one."""
        return slice(self.rank * count // self.ranks, (self.rank + 1) * count // self.ranks)

    def lengths(self, count: int) -> list[int]:
        """Returns the lengths of all ranks' ranges of `count` items."""
        return [length(Shard(rank, self.ranks).part(count)) for rank in range(self.ranks)]

    def kv_heads(self, count: int) -> slice:
        """Returns this rank's range of `count` KV heads; if there are fewer than ranks, several ranks hold the same."""
        if count >= self.ranks:
            return self.part(count)
        first = self.rank * count // self.ranks
        return slice(first, first + 1)


def scaled(part: slice, width: int) -> slice:
    """Returns the range of values of a range of items, each of which has `width` values."""
    return slice(part.start * width, part.stop * width)


def length(part: slice) -> int:
    return int(part.stop - part.start)
