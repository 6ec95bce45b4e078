"""Moves blocks out of the pool, into it and within it, and encodes them: bound by reading and writing them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmarks.kernels.attention.paging import BLOCK, LLAMA, QWEN, Heads
from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from kernels.block_copy import CANDIDATES, Code, copy, encode, gather, reference, reference_encode, scatter
from kernels.tuning import Config

LIMIT: Limit = "copy"
SCALE_BYTES = 4
ODD = ((80, 16), (128, 64))
"""Head sizes and block sizes."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Move:
    """Describes so many blocks of all layers, as a handoff, an eviction or a copy on write moves them."""

    what: Literal["gather", "scatter", "copy"]
    blocks: int
    layers: int
    heads: Heads
    block: int = BLOCK
    target: Target | None = None

    def __str__(self) -> str:
        more = f", blocks of {self.block}" if self.block != BLOCK else ""
        return f"{self.what} {self.blocks} blocks{more}, {self.layers} layers, {self.heads}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        pool = made_pool(self.layers, self.blocks, self.heads, self.block, device, dtype)
        sources, targets = torch.randperm(2 * self.blocks, device=device).add_(1).chunk(2)
        run, check, peer = {"gather": self._gather, "scatter": self._scatter, "copy": self._copy}[self.what](
            pool, sources, targets
        )
        return Case(run, check, bytes=2 * self.blocks * pool[:, 0].nbytes, peers={"operators": peer})

    def _gather(self, pool: Tensor, sources: Tensor, targets: Tensor) -> "Work":
        def run(config: Config | None) -> Tensor:
            return gather(pool, sources, config=config)

        def check(config: Config | None) -> None:
            assert torch.equal(run(config), reference(pool, sources)), "other blocks"

        return run, check, lambda: reference(pool, sources)

    def _scatter(self, pool: Tensor, sources: Tensor, targets: Tensor) -> "Work":
        staging = gather(pool, sources)

        def run(config: Config | None) -> None:
            scatter(staging, pool, targets, config=config)

        def peer(into: Tensor = pool) -> None:
            into[:, targets] = staging.transpose(0, 1)

        def check(config: Config | None) -> None:
            expected = pool.clone()
            run(config)
            peer(expected)
            assert torch.equal(pool, expected), "other blocks"

        return run, check, peer

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


@dataclass(frozen=True)
class Encode:
    """Describes so many blocks of one layer, as they leave on a slow link."""

    code: Code
    blocks: int
    heads: Heads
    block: int = BLOCK
    target: Target | None = None
    parts: tuple[int, ...] = ()  # values of a head that share a scale; empty: all of them

    def __str__(self) -> str:
        more = f", blocks of {self.block}" if self.block != BLOCK else ""
        more += f", parts of {' and '.join(map(str, self.parts))}" if self.parts else ""
        return f"encode {self.blocks} blocks as {self.code}{more}, {self.heads}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        layer = made_pool(1, self.blocks, self.heads, self.block, device, dtype)[0]
        blocks = torch.randperm(2 * self.blocks, device=device).add_(1)[: self.blocks]
        values = self.blocks * layer[0].numel()

        def run(config: Config | None) -> tuple[Tensor, Tensor]:
            return encode(layer, blocks, self.code, self.parts, config=config)

        def peer() -> tuple[Tensor, Tensor]:
            return reference_encode(layer, blocks, self.code, self.parts)

        def check(config: Config | None) -> None:
            (found, scales), (expected, expected_scales) = run(config), peer()
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), "other bytes"
            close(scales, expected_scales)

        scales = values // (self.block * self.heads.dim) * max(1, len(self.parts))
        moved = values * (dtype.itemsize + 1) + SCALE_BYTES * scales
        return Case(run, check, bytes=moved, peers={"operators": peer})


def made_pool(layers: int, blocks: int, heads: Heads, block: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Draws random KV: twice the `blocks` that a row moves, and the null block."""
    return random((layers, 1 + 2 * blocks, 2 * heads.keys, block, heads.dim), device, dtype)


Work = tuple[Callable[[Config | None], object], Callable[[Config | None], None], Callable[[], object]]
"""Run, check, and what PyTorch does instead."""

CODES: tuple[Code, ...] = ("int8", "fp8")

SHAPES: Mapping[Size, Sequence[Move | Encode]] = {
    "full": [
        Move("gather", 256, 32, LLAMA),
        Move("scatter", 256, 32, LLAMA),
        *(Encode(code, 8192, LLAMA) for code in CODES),
        Move("copy", 64, 32, LLAMA),
        Move("gather", 16, 28, QWEN),
    ],
    "tiny": [
        *(Move(what, 3, 2, Heads(4, 2, 16), block=8) for what in ("gather", "scatter")),
        *(Encode(code, 3, Heads(4, 2, 16), block=8) for code in CODES),
        Encode("int8", 3, Heads(4, 2, 24), block=8, parts=(20, 4)),
        Move("copy", 3, 2, Heads(4, 2, 16)),
    ],
    "compiled": [
        *(Move(what, 4, 2, Heads(4, 2, dim), block) for what in ("gather", "scatter") for dim, block in ODD),
        *(Encode(code, 4, Heads(4, 2, dim), block) for code in CODES for dim, block in ODD),
        *(Encode(code, 4, Heads(16, 1, 576), parts=(512, 64)) for code in CODES),  # latent vectors and their keys
    ],
}
