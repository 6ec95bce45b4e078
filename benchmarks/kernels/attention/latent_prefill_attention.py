"""Attends with a chunk of a prompt over the latent vectors before and in it, absorbed: bound by multiplying."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.attention.latent_decode_attention import DEEPSEEK, DEEPSEEK_LITE, KIMI, Vectors, stored
from benchmarks.kernels.attention.paging import BLOCK
from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.quantized.kv import QUANTIZED, KVForm, bytes_of_vector, named
from kernels.attention.latent_prefill_attention import CANDIDATES, latent_prefill_attention, reference
from kernels.tuning import Config

LIMIT: Limit = "multiply"
CHECKED = 16
"""Queries that are compared with the reference, the last ones."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class LatentPrefill:
    """Describes `tokens` queries at the end of a sequence of `context` tokens."""

    tokens: int
    context: int
    vectors: Vectors
    block: int = BLOCK
    target: Target | None = None
    form: KVForm = "numbers"

    def __str__(self) -> str:
        what = f"{self.tokens} tokens after {self.context - self.tokens}, {self.vectors}"
        return ", ".join([what, *named(self.form)])

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        vectors = self.vectors
        kv = stored(1, self.context, vectors, self.block, device, dtype, self.form)
        queries = random((self.tokens, vectors.heads, vectors.latent + vectors.rope), device, dtype)
        starts = torch.tensor([0, self.tokens], dtype=torch.int32, device=device)

        def run(config: Config | None) -> Tensor:
            return latent_prefill_attention(
                queries,
                kv.pool,
                kv.tables,
                starts,
                kv.lengths,
                latent=vectors.latent,
                scale=vectors.scale,
                config=config,
            )

        def check(config: Config | None) -> None:
            own = queries[-CHECKED:].double()
            pool, tables, lengths = kv.exact(1, vectors)
            counted = starts.clamp(max=len(own))
            expected = reference(own, pool, tables, counted, lengths, latent=vectors.latent, scale=vectors.scale)
            close(run(config)[-CHECKED:], expected)

        pairs = (2 * self.context - self.tokens + 1) * self.tokens // 2
        return Case(
            run,
            check,
            bytes=self.context * bytes_of_vector(self.form, dtype, *vectors.parts)
            + 2 * queries.numel() * dtype.itemsize,
            operations=2 * pairs * vectors.heads * (2 * vectors.latent + vectors.rope),
        )


SHAPES: Mapping[Size, Sequence[LatentPrefill]] = {
    "full": [
        LatentPrefill(tokens, context, vectors)
        for vectors in (DEEPSEEK, DEEPSEEK_LITE)
        for tokens, context in ((512, 512), (2048, 2048), (64, 32768))
    ]
    + [LatentPrefill(64, 32768, vectors, form=form) for form in QUANTIZED for vectors in (DEEPSEEK, DEEPSEEK_LITE)],
    "tiny": [
        LatentPrefill(9, 20, Vectors(3, 32, 16)),
        LatentPrefill(3, 3, Vectors(2, 24, 8), block=8),
        *(LatentPrefill(9, 20, Vectors(3, 32, 16), form=form) for form in QUANTIZED),
    ],
    "compiled": [
        *(LatentPrefill(512, 512, vectors) for vectors in (KIMI, Vectors(9, 64, 16), Vectors(40, 256, 32))),
        *(LatentPrefill(512, 512, vectors, form=form) for form in QUANTIZED for vectors in (DEEPSEEK, DEEPSEEK_LITE)),
    ],
}
