"""Rotates a part of each head's query: bound by reading and writing that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from kernels.rotate_queries import CANDIDATES, reference, rotate_queries
from kernels.tuning import Config

LIMIT: Limit = "copy"
POSITIONS = 4096

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Turn:
    """Describes queries of one step, whose last `rope` numbers of `dim` are rotated."""

    tokens: int
    heads: int
    dim: int
    rope: int
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.heads} heads, {self.rope} of {self.dim}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        queries = random((self.tokens, self.heads, self.dim), device, dtype)
        positions = torch.randint(POSITIONS, (self.tokens,), device=device)
        angles = torch.rand((POSITIONS, self.rope // 2), device=device) * 6.28
        cos_sin = torch.cat((angles.cos(), angles.sin()), 1)

        def check(config: Config | None) -> None:
            ours, theirs = queries.clone(), queries.clone()
            rotate_queries(ours, positions, cos_sin, config=config)
            reference(theirs, positions, cos_sin)
            close(ours, theirs)

        changed = self.tokens * self.heads * self.rope
        return Case(
            lambda config: rotate_queries(queries, positions, cos_sin, config=config),
            check,
            bytes=2 * changed * dtype.itemsize + self.tokens * (self.rope * 4 + 8),
            peers={"operators": lambda: reference(queries, positions, cos_sin)},
        )


SHAPES: Mapping[Size, Sequence[Turn]] = {
    "full": [Turn(tokens, heads, 192, 64) for heads in (128, 16) for tokens in (1, 32, 256, 8192)],
    "tiny": [Turn(5, 3, 24, 8)],
    "compiled": [Turn(2, 9, 48, 16)],
}
