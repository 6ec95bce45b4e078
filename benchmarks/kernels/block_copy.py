"""Blocks between the pool and one piece of memory, and from block to block: bound by reading and writing them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.paging import BLOCK, LLAMA, QWEN, Heads
from kernels.block_copy import CANDIDATES, Form, copy, gather, reference, reference_scatter, scatter
from kernels.tuning import Config

LIMIT: Limit = "copy"
SCALE_BYTES = 4

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Move:
    """So many blocks of all layers, as a handoff, an eviction or a copy on write moves them."""

    what: Literal["gather", "scatter", "copy"]
    blocks: int
    layers: int
    heads: Heads
    form: Form = "same"
    block: int = BLOCK
    target: Target | None = None

    def __str__(self) -> str:
        more = "" if self.form == "same" else f" as {self.form}"
        more += f", blocks of {self.block}" if self.block != BLOCK else ""
        return f"{self.what} {self.blocks} blocks{more}, {self.layers} layers, {self.heads}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """See `benchmarks.kernels.case.Shape`."""
        shape = (self.layers, 1 + 2 * self.blocks, self.heads.keys, 2, self.block, self.heads.dim)
        pool = random(shape, device, dtype)
        sources, targets = torch.randperm(2 * self.blocks, device=device).add_(1).chunk(2)
        values = self.blocks * pool[:, 0].numel()
        stored = dtype.itemsize if self.form == "same" else 1
        scales = 0 if self.form == "same" else SCALE_BYTES * values // (self.block * self.heads.dim)
        moved = 2 * values * dtype.itemsize if self.what == "copy" else values * (dtype.itemsize + stored) + scales
        run, check, peer = {"gather": self._gather, "scatter": self._scatter, "copy": self._copy}[self.what](
            pool, sources, targets
        )
        return Case(run, check, bytes=moved, peers={"operators": peer})

    def _gather(self, pool: Tensor, sources: Tensor, targets: Tensor) -> "Work":
        def run(config: Config | None) -> object:
            return (
                gather(pool, sources, config=config) if self.form == "same" else self._converted(pool, sources, config)
            )

        def check(config: Config | None) -> None:
            found = run(config)
            expected, scales = reference(pool, sources, self.form)
            if scales is None:
                found = (found, None)
            assert isinstance(found, tuple)
            assert torch.equal(found[0].view(torch.uint8), expected.view(torch.uint8)), "other bytes"
            if scales is not None:
                close(found[1], scales)

        return run, check, lambda: reference(pool, sources, self.form)

    def _scatter(self, pool: Tensor, sources: Tensor, targets: Tensor) -> "Work":
        staging, scales = self._staged(pool, sources)

        def run(config: Config | None) -> None:
            scatter(staging, pool, targets, self.form, scales, config=config)

        def check(config: Config | None) -> None:
            expected = pool.clone()
            run(config)
            reference_scatter(staging, expected, targets, scales)
            assert torch.equal(pool, expected), "other blocks"

        return run, check, lambda: reference_scatter(staging, pool, targets, scales)

    def _copy(self, pool: Tensor, sources: Tensor, targets: Tensor) -> "Work":
        def run(config: Config | None) -> None:
            copy(pool, sources, targets, config=config)

        def peer() -> None:
            pool.index_copy_(1, targets, pool.index_select(1, sources))

        def check(config: Config | None) -> None:
            expected = pool.clone()
            expected.index_copy_(1, targets, expected.index_select(1, sources))
            run(config)
            assert torch.equal(pool, expected), "other blocks"

        return run, check, peer

    def _staged(self, pool: Tensor, sources: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.form == "same":
            return gather(pool, sources), None
        return self._converted(pool, sources, None)

    def _converted(self, pool: Tensor, sources: Tensor, config: Config | None) -> tuple[Tensor, Tensor]:
        assert self.form != "same"
        return gather(pool, sources, self.form, config=config)


Work = tuple[Callable[[Config | None], object], Callable[[Config | None], None], Callable[[], object]]
"""Run, check, and what PyTorch does instead."""

FORMS: tuple[Form, ...] = ("same", "int8", "fp8")

SHAPES: Mapping[Size, Sequence[Move]] = {
    "full": [
        *(Move(what, 256, 32, LLAMA, form) for form in FORMS for what in ("gather", "scatter")),
        Move("copy", 64, 32, LLAMA),
        Move("gather", 16, 28, QWEN),
    ],
    "tiny": [
        *(Move(what, 3, 2, Heads(4, 2, 16), form, block=8) for form in FORMS for what in ("gather", "scatter")),
        Move("copy", 3, 2, Heads(4, 2, 16)),
    ],
    "compiled": [
        Move(what, 4, 2, Heads(4, 2, dim), form, block)
        for what in ("gather", "scatter")
        for form in FORMS
        for dim, block in ((80, 16), (128, 64))
    ],
}
