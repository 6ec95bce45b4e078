"""Stores queries, keys and values of a step where attention finds them: bound by reading and writing them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.attention.paging import BLOCK, GEMMA, GPT_OSS, LLAMA, OLMO, PHI, QWEN, Heads
from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.quantized.kv import QUANTIZED, KVForm, bytes_of_vector, close_in_form, in_form, named
from kernels.rope_and_store import CANDIDATES, reference, rope_and_store
from kernels.tuning import Config

LIMIT: Limit = "copy"
EPS = 1e-6
POSITIONS = 4096

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Rotation:
    """Describes tokens of one step at random places.

    `normed`: queries and keys have norms of their own, as Qwen3's; `as_one`: one for all heads, as OLMo 2's; `turned`:
    values of a head that are rotated, if not all are.
    """

    tokens: int
    heads: Heads
    normed: bool = False
    as_one: bool = False
    turned: int | None = None
    block: int = BLOCK
    target: Target | None = None
    form: KVForm = "numbers"

    def __str__(self) -> str:
        more = [", normed as one" if self.as_one else ", normed"] if self.normed else []
        more += [f", {self.turned} rotated"] if self.turned is not None else []
        more += [f", blocks of {self.block}"] if self.block != BLOCK else []
        return ", ".join([f"{self.tokens} tokens, {self.heads}{''.join(more)}", *named(self.form)])

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        queries, keys, dim = self.heads
        heads = random((self.tokens, queries + 2 * keys, dim), device, dtype)
        blocks = 1 + -(-self.tokens // self.block)
        numbers = random((blocks, keys, 2, self.block, dim), device, dtype)
        pool = in_form(numbers, self.form, dim)
        slots = torch.randperm((blocks - 1) * self.block, device=device)[: self.tokens] + self.block
        positions = torch.randint(POSITIONS, (self.tokens,), device=device)
        turned = dim if self.turned is None else self.turned
        angles = torch.rand((POSITIONS, turned // 2), device=device) * 6.28
        cos_sin = torch.cat((angles.cos(), angles.sin()), 1) if turned else None
        weight = random((queries + keys, dim), device, torch.float32) if self.normed else None
        own_way: dict[str, Any] = {"query_heads": queries, "norm_weight": weight, "as_one": self.as_one, "eps": EPS}

        def rotate(own: Tensor, into: Tensor, config: Config | None) -> None:
            rope_and_store(own, positions, slots, cos_sin, into, config=config, **own_way)

        def check(config: Config | None) -> None:
            found, expected = (heads.clone(), pool.clone()), (heads.clone(), numbers.clone())
            rotate(*found, config)
            own, into = expected
            reference(own, positions, slots, cos_sin, into, **own_way)
            close(found[0][:, :queries], own[:, :queries])
            close_in_form(found[1], in_form(into, self.form, dim), dtype, dim)

        def peer() -> None:
            reference(heads, positions, slots, cos_sin, numbers, **own_way)

        return Case(
            lambda config: rotate(heads, pool, config),
            check,
            bytes=(heads.numel() + self.tokens * queries * dim) * dtype.itemsize
            + self.tokens * (2 * keys * bytes_of_vector(self.form, dtype, dim) + turned * 4 + 16),
            peers={"operators": peer} if self.form == "numbers" else {},
        )


SHAPES: Mapping[Size, Sequence[Rotation]] = {
    "full": [
        Rotation(tokens, heads, normed)
        for heads, normed in ((LLAMA, False), (QWEN, True))
        for tokens in (1, 32, 256, 8192)
    ]
    + [
        shape
        for tokens in (32, 8192)
        for shape in (
            Rotation(tokens, OLMO, normed=True, as_one=True),
            Rotation(tokens, PHI, turned=96),
            Rotation(tokens, GEMMA, normed=True),
        )
    ]
    + [Rotation(tokens, LLAMA, form=form) for form in QUANTIZED for tokens in (32, 8192)],
    "tiny": [
        Rotation(5, Heads(4, 2, 16)),
        Rotation(3, Heads(2, 1, 24), normed=True, block=8),
        Rotation(3, Heads(3, 2, 24), normed=True, as_one=True, turned=10),
        Rotation(3, Heads(2, 1, 16), turned=0),
        *(Rotation(5, Heads(4, 2, 16), form=form) for form in QUANTIZED),
    ],
    "compiled": [
        *(Rotation(2, Heads(8, 2, dim)) for dim in (16, 32, 64, 80, 96, 256)),
        *(Rotation(2, LLAMA, block=block) for block in (8, 32, 64)),
        Rotation(2, Heads(40, 40, 128), normed=True, as_one=True),
        Rotation(2, LLAMA, turned=0),
        Rotation(2, GPT_OSS, turned=32, normed=True),
        *(Rotation(2, Heads(8, 2, dim), form=form) for form in QUANTIZED for dim in (64, 80, 128, 256)),
        *(Rotation(2, Heads(40, 40, 128), normed=True, as_one=True, form=form) for form in QUANTIZED),
    ],
}
