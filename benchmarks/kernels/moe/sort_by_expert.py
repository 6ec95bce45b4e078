"""Sorts pairs of tokens and experts: bound by reading and writing them, and in truth by its launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target
from kernels.moe.expert_products import rows_for
from kernels.moe.sort_by_expert import CANDIDATES, NOBODY, Tiles, reference, sort_by_expert
from kernels.tuning import Config

LIMIT: Limit = "copy"

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Sort:
    """Describes the pairs of `tokens` tokens that each use `used` of `experts`."""

    tokens: int
    used: int
    experts: int
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.used} of {self.experts} experts"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says. They are int32; `dtype` is that of products behind."""
        chosen = torch.rand((self.tokens, self.experts), device=device).topk(self.used).indices.int()
        rows = rows_for(chosen.numel(), self.experts, dtype)

        def run(config: Config | None) -> Tiles:
            return sort_by_expert(chosen, self.experts, rows, config=config)

        def check(config: Config | None) -> None:
            found, expected = run(config), reference(chosen, self.experts, rows)
            assert found.owners.equal(expected.owners), "tiles of other experts"
            needed = int((found.owners != NOBODY).sum()) * rows
            assert found.pairs[:needed].equal(expected.pairs[:needed]), "other pairs"

        def peer() -> Tensor:
            return chosen.flatten().sort(stable=True).indices

        return Case(run, check, bytes=8 * chosen.numel(), peers={"sort": peer} if device.type != "meta" else {})


SHAPES: Mapping[Size, Sequence[Sort]] = {
    "full": [Sort(tokens, *layer) for tokens in (1, 32, 8192) for layer in ((8, 128), (2, 8), (8, 256))],
    "tiny": [Sort(5, 2, 4)],
    "compiled": [Sort(32, 4, 32), Sort(32, 6, 160)],
}
