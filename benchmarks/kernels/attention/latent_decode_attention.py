"""Attends with one query a sequence over its latent vectors: bound by reading those, where heads are not too many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.attention.paging import BLOCK, processors
from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.quantized.kv import QUANTIZED, KVForm, bytes_of_vector, exact, in_form, named
from kernels.attention.decode_pieces import cut, may_be_cut, pieces_of, room_for_pieces
from kernels.attention.latent_decode_attention import CANDIDATES, latent_decode_attention, reference
from kernels.attention.latent_tiles import programs_of
from kernels.tuning import Config

LIMIT: Limit = "copy"
CHECKED = 2
"""Sequences that are compared with the reference."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


class Vectors(NamedTuple):
    """Says how many heads share how large vectors."""

    heads: int
    latent: int
    rope: int

    @property
    def parts(self) -> tuple[int, int]:
        """Returns the numbers that share a scale in a quantized pool."""
        return self.latent, self.rope

    @property
    def scale(self) -> float:
        """Returns about what models scale scores by."""
        return float((self.latent // 4 + self.rope) ** -0.5)

    def __str__(self) -> str:
        return f"{self.heads} heads, {self.latent} + {self.rope}"


DEEPSEEK, KIMI, DEEPSEEK_LITE = Vectors(128, 512, 64), Vectors(64, 512, 64), Vectors(16, 512, 64)


class Stored(NamedTuple):
    """Holds the latent vectors of sequences of equal length, in blocks in random order."""

    pool: Tensor  # [blocks, 1, block, latent + rope], or [blocks, 1, bytes]; block 0 is the null block
    tables: Tensor  # [works, blocks of each] int32
    lengths: Tensor  # [works] int32

    def exact(self, works: int, vectors: Vectors) -> "Stored":
        """Returns the first `works` of them in fp64."""
        tables = self.tables[:works]
        own = torch.arange(tables.numel(), dtype=torch.int32, device=tables.device).view(tables.shape)
        return Stored(exact(self.pool[tables.long().flatten()], *vectors.parts), own, self.lengths[:works])


def stored(
    works: int,
    tokens: int,
    vectors: Vectors,
    block: int,
    device: torch.device,
    dtype: torch.dtype,
    form: KVForm = "numbers",
) -> Stored:
    """Draws random latent vectors and keys."""
    width = -(-tokens // block)
    pool = random((1 + works * width, 1, block, vectors.latent + vectors.rope), device, dtype)
    tables = torch.randperm(works * width, device=device).add_(1).int().view(works, width)
    return Stored(
        in_form(pool, form, *vectors.parts), tables, torch.full((works,), tokens, dtype=torch.int32, device=device)
    )


@dataclass(frozen=True)
class LatentDecode:
    """Describes one query of each of `batch` sequences."""

    batch: int
    context: int
    vectors: Vectors
    block: int = BLOCK
    target: Target | None = None
    form: KVForm = "numbers"

    def __str__(self) -> str:
        return ", ".join([f"batch {self.batch}, context {self.context}, {self.vectors}", *named(self.form)])

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        vectors = self.vectors
        kv = stored(self.batch, self.context, vectors, self.block, device, dtype, self.form)
        queries = random((self.batch, vectors.heads, vectors.latent + vectors.rope), device, dtype)
        pieces = None
        if may_be_cut(self.context, 0):
            room = room_for_pieces(processors(device), programs_of(vectors.heads))
            planned = torch.from_numpy(cut(np.full(self.batch, self.context), room)).to(device)
            pieces = pieces_of(planned, self.batch, room)

        def run(config: Config | None) -> Tensor:
            return latent_decode_attention(
                queries, *kv, latent=vectors.latent, scale=vectors.scale, pieces=pieces, config=config
            )

        def check(config: Config | None) -> None:
            own = queries[:CHECKED].double()
            expected = reference(own, *kv.exact(CHECKED, vectors), latent=vectors.latent, scale=vectors.scale)
            close(run(config)[: len(expected)], expected)

        seen = self.batch * self.context
        return Case(
            run,
            check,
            bytes=seen * bytes_of_vector(self.form, dtype, *vectors.parts) + 2 * queries.numel() * dtype.itemsize,
            operations=2 * seen * vectors.heads * (2 * vectors.latent + vectors.rope),
        )


SHAPES: Mapping[Size, Sequence[LatentDecode]] = {
    "full": [
        LatentDecode(batch, context, vectors)
        for vectors in (DEEPSEEK, DEEPSEEK_LITE)
        for context in (2048, 32768)
        for batch in (1, 8, 32, 128)
        if batch * context <= 1 << 20
    ]
    + [
        LatentDecode(batch, context, vectors, form=form)
        for form in QUANTIZED
        for vectors in (DEEPSEEK, DEEPSEEK_LITE)
        for batch, context in ((1, 32768), (32, 2048))
    ],
    "tiny": [
        LatentDecode(2, 40, Vectors(3, 32, 16)),
        LatentDecode(1, 9, Vectors(2, 24, 8), block=8),
        *(LatentDecode(2, 40, Vectors(3, 32, 16), form=form) for form in QUANTIZED),
    ],
    "compiled": [
        LatentDecode(8, 2048, KIMI),
        LatentDecode(8, 512, DEEPSEEK),
        LatentDecode(8, 2048, Vectors(9, 64, 16)),
        LatentDecode(8, 2048, Vectors(40, 256, 32)),
        LatentDecode(8, 2048, DEEPSEEK, block=64),
        *(
            LatentDecode(8, 2048, vectors, form=form)
            for form in QUANTIZED
            for vectors in (DEEPSEEK, DEEPSEEK_LITE, Vectors(9, 64, 16))
        ),
    ],
}
