"""Stores queries, keys and values of a step where attention finds them: bound by reading and writing them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.paging import BLOCK, LLAMA, QWEN, Heads
from kernels.rope_and_store import CANDIDATES, reference, rope_and_store
from kernels.tuning import Config

LIMIT: Limit = "copy"
EPS = 1e-6
POSITIONS = 4096

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Rotation:
    """Describes tokens of one step at random places; `normed`: queries and keys have norms of their own, as Qwen3's."""

    tokens: int
    heads: Heads
    normed: bool = False
    block: int = BLOCK
    target: Target | None = None

    def __str__(self) -> str:
        more = [", normed"] if self.normed else []
        more += [f", blocks of {self.block}"] if self.block != BLOCK else []
        return f"{self.tokens} tokens, {self.heads}{''.join(more)}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        queries, keys, dim = self.heads
        heads = random((self.tokens, queries + 2 * keys, dim), device, dtype)
        blocks = 1 + -(-self.tokens // self.block)
        pool = random((blocks, keys, 2, self.block, dim), device, dtype)
        slots = torch.randperm((blocks - 1) * self.block, device=device)[: self.tokens] + self.block
        positions = torch.randint(POSITIONS, (self.tokens,), device=device)
        angles = torch.rand((POSITIONS, dim // 2), device=device) * 6.28
        cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
        weight = random((queries + keys, dim), device, dtype) if self.normed else None

        def rotate(own: Tensor, into: Tensor, config: Config | None) -> None:
            rope_and_store(
                own,
                positions,
                slots,
                cos_sin,
                into,
                query_heads=queries,
                norm_weight=weight,
                eps=EPS,
                config=config,
            )

        def check(config: Config | None) -> None:
            found, expected = [(heads.clone(), pool.clone()) for _ in range(2)]
            rotate(*found, config)
            own, into = expected
            reference(own, positions, slots, cos_sin, into, query_heads=queries, norm_weight=weight, eps=EPS)
            close(found[0][:, :queries], own[:, :queries])
            close(found[1], into)

        def peer() -> None:
            wide = heads[:, : queries + keys].float()
            if weight is not None:
                wide = functional.rms_norm(wide, (dim,), eps=EPS) * weight
            cos, sin = cos_sin[positions][:, None].chunk(2, -1)
            first, second = wide.chunk(2, -1)
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(dtype)
            heads[:, :queries] = turned[:, :queries]
            stored = torch.stack((turned[:, queries:], heads[:, queries + keys :]), 2)
            pool[slots // self.block, :, :, slots % self.block] = stored

        return Case(
            lambda config: rotate(heads, pool, config),
            check,
            bytes=2 * heads.numel() * dtype.itemsize + self.tokens * (dim * 4 + 16),
            peers={"operators": peer},
        )


SHAPES: Mapping[Size, Sequence[Rotation]] = {
    "full": [
        Rotation(tokens, heads, normed)
        for heads, normed in ((LLAMA, False), (QWEN, True))
        for tokens in (1, 32, 256, 8192)
    ],
    "tiny": [Rotation(5, Heads(4, 2, 16)), Rotation(3, Heads(2, 1, 24), normed=True, block=8)],
    "compiled": [
        *(Rotation(2, Heads(8, 2, dim)) for dim in (16, 32, 64, 80, 96, 256)),
        *(Rotation(2, LLAMA, block=block) for block in (8, 32, 64)),
    ],
}
