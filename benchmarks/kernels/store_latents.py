"""Stores latent vectors and keys of a step, and norms what queries come from: bound by reading and writing them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.attention.paging import BLOCK
from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.quantized.kv import QUANTIZED, KVForm, bytes_of_vector, close_in_form, in_form, named
from kernels.store_latents import CANDIDATES, reference, store_latents
from kernels.tuning import Config

LIMIT: Limit = "copy"
EPS = 1e-6
POSITIONS = 4096

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Store:
    """Describes tokens of one step at random places; queries come from `query_rank` numbers, 0: not from a latent."""

    tokens: int
    query_rank: int
    latent: int
    rope: int
    block: int = BLOCK
    target: Target | None = None
    form: KVForm = "numbers"

    def __str__(self) -> str:
        what = f"{self.tokens} tokens, {self.latent} + {self.rope}, queries from {self.query_rank}"
        return ", ".join([what, *named(self.form)])

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        stored = self.latent + self.rope
        down = random((self.tokens, self.query_rank + stored), device, dtype)
        blocks = 1 + -(-self.tokens // self.block)
        numbers = random((blocks, 1, self.block, stored), device, dtype)
        pool = in_form(numbers, self.form, self.latent, self.rope)
        slots = torch.randperm((blocks - 1) * self.block, device=device)[: self.tokens] + self.block
        positions = torch.randint(POSITIONS, (self.tokens,), device=device)
        angles = torch.rand((POSITIONS, self.rope // 2), device=device) * 6.28
        cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
        weight = random((self.latent,), device, torch.float32)
        query_weight = random((self.query_rank,), device, torch.float32) if self.query_rank else None

        def store(into: Tensor, config: Config | None) -> Tensor:
            return store_latents(down, positions, slots, cos_sin, weight, query_weight, into, EPS, config=config)

        def check(config: Config | None) -> None:
            ours, theirs = pool.clone(), numbers.clone()
            found = store(ours, config)
            expected = reference(down, positions, slots, cos_sin, weight, query_weight, theirs, EPS)
            theirs = in_form(theirs, self.form, self.latent, self.rope)
            close_in_form(ours, theirs, dtype, self.latent, self.rope)
            if self.query_rank:
                close(found, expected)

        return Case(
            lambda config: store(pool, config),
            check,
            bytes=(down.numel() + self.tokens * self.query_rank) * dtype.itemsize
            + self.tokens * (bytes_of_vector(self.form, dtype, self.latent, self.rope) + self.rope * 4 + 16),
            peers={},
        )


SHAPES: Mapping[Size, Sequence[Store]] = {
    "full": [Store(tokens, rank, 512, 64) for rank in (1536, 0) for tokens in (1, 32, 256, 8192)]
    + [Store(tokens, 1536, 512, 64, form=form) for form in QUANTIZED for tokens in (32, 8192)],
    "tiny": [
        Store(5, 48, 32, 16),
        Store(3, 0, 24, 6, block=8),
        *(Store(5, 48, 32, 16, form=form) for form in QUANTIZED),
    ],
    "compiled": [
        Store(2, 1536, 512, 64, block=64),
        Store(2, 768, 256, 32),
        *(Store(2, 1536, 512, 64, form=form) for form in QUANTIZED),
    ],
}
