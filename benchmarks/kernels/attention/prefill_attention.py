"""Attends with a prompt, or its last chunk, over the KV before and in it: bound by multiplying."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.attention.attention_peers import prefill_peers
from benchmarks.kernels.attention.paging import BLOCK, GEMMA, GEMMA_2, GPT_OSS, LLAMA, QWEN, Heads, paged
from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.quantized.kv import QUANTIZED, KVForm, bytes_of_vector, named
from kernels.attention.attention_tiles import PLAIN, Scoring
from kernels.attention.prefill_attention import CANDIDATES, prefill_attention, reference
from kernels.tuning import Config

LIMIT: Limit = "multiply"
CHECKED = 64
"""Queries that are compared with the reference, at the beginning, in the middle and at the end."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Prefill:
    """Describes `tokens` queries at the end of `context` tokens, of each of `works` sequences.

    With `sinks` each head has one.
    """

    tokens: int
    context: int
    heads: Heads
    target: Target | None = None
    works: int = 1
    window: int = 0
    block: int = BLOCK
    flex: bool = False
    softcap: float = 0.0
    sinks: bool = False
    form: KVForm = "numbers"

    def __str__(self) -> str:
        what = f"{self.tokens} tokens" + (f" after {self.context - self.tokens}" if self.context > self.tokens else "")
        more = [f"{self.works} sequences"] if self.works > 1 else []
        more += [f"window {self.window}"] if self.window else []
        more += [f"soft cap {self.softcap:g}"] if self.softcap else []
        more += ["sinks"] if self.sinks else []
        more += [f"blocks of {self.block}"] if self.block != BLOCK else []
        more += named(self.form)
        return ", ".join([f"{what}, {self.heads}", *more])

    @property
    def pairs(self) -> int:
        """Counts the pairs of query and key that meet, in one sequence and head."""
        first, last = self.context - self.tokens + 1, self.context
        if not self.window or self.window >= last:
            return (first + last) * self.tokens // 2
        return sum(min(seen, self.window) for seen in range(first, last + 1))

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        kv = paged(self.works, self.context, self.heads, self.block, device, dtype, self.form)
        rows = self.works * self.tokens
        # As a slice of the fused projection: a row's queries stand before its keys and values.
        fused = random((rows, self.heads.queries + 2 * self.heads.keys, self.heads.dim), device, dtype)
        queries = fused[:, : self.heads.queries]
        starts = torch.arange(0, rows + 1, self.tokens, dtype=torch.int32, device=device)

        scoring = Scoring(window=self.window, softcap=self.softcap)
        sinks = random((self.heads.queries,), device, torch.float32) if self.sinks else None

        def run(config: Config | None) -> Tensor:
            return prefill_attention(
                queries,
                kv.pool,
                kv.tables,
                starts,
                kv.lengths,
                longest=self.tokens,
                scoring=scoring,
                sinks=sinks,
                config=config,
            )

        def check(config: Config | None) -> None:
            found = run(config)
            few = min(CHECKED, self.tokens)
            pool, tables, lengths = kv.exact(1, self.heads.dim)
            for begin in {0, (self.tokens - few) // 2, self.tokens - few}:
                # Queries in the middle of a prompt are the last of a shorter one.
                shorter = lengths - (self.tokens - begin - few)
                own = slice(begin, begin + few)
                counted = starts[:2].clamp(max=few)
                doubled = queries[own].double()
                expected = reference(doubled, pool, tables, counted, shorter, scoring=scoring, sinks=sinks)
                close(found[own], expected)

        plain = scoring == PLAIN and self.form == "numbers" and not self.sinks
        comparable = self.works == 1 and plain and device.type != "meta"
        vectors = 2 * self.works * self.context * self.heads.keys
        return Case(
            run,
            check,
            bytes=2 * queries.numel() * dtype.itemsize + vectors * bytes_of_vector(self.form, dtype, self.heads.dim),
            operations=4 * self.works * self.heads.queries * self.heads.dim * self.pairs,
            peers=prefill_peers(queries, *kv.contiguous(), self.flex) if comparable else {},
        )


CHUNK, SHORT = 2048, 64
"""Tokens of a chunk of a long prompt, and of a prompt whose beginning was in the cache."""

SHAPES: Mapping[Size, Sequence[Prefill]] = {
    "full": [
        *(
            Prefill(tokens, tokens, heads, Target() if wanted else None, flex=wanted)
            for heads in (LLAMA, QWEN)
            for tokens in (512, 2048, 8192, 32768)
            for wanted in [heads == LLAMA and tokens == 8192]
        ),
        *(Prefill(CHUNK, context, LLAMA) for context in (8192, 32768)),
        Prefill(SHORT, 32768, LLAMA),
        Prefill(8192, 8192, GEMMA_2, softcap=50.0),
        Prefill(8192, 8192, GEMMA, window=1024),
        *(Prefill(8192, 8192, GPT_OSS, sinks=True, window=window) for window in (0, 128)),
        *(
            Prefill(tokens, context, heads, form=form)
            for form in QUANTIZED
            for tokens, context, heads in ((8192, 8192, LLAMA), (SHORT, 32768, LLAMA), (8192, 8192, GEMMA))
        ),
    ],
    "tiny": [
        Prefill(20, 20, Heads(4, 2, 16)),
        Prefill(6, 15, Heads(4, 2, 16)),
        Prefill(9, 33, Heads(4, 1, 32), works=2, window=7, block=8, softcap=9.0, sinks=True),
        *(Prefill(6, 15, Heads(4, 2, 16), form=form) for form in QUANTIZED),
    ],
    "compiled": [
        *(Prefill(512, 512, Heads(8, 2, dim)) for dim in (16, 32, 64, 80, 96, 128, 192, 256)),
        *(Prefill(512, 512, heads) for heads in (LLAMA, QWEN, Heads(8, 8, 128), Heads(16, 1, 128))),
        *(Prefill(4, 512, Heads(8, 2, dim)) for dim in (16, 128, 256)),  # a short prompt's smaller tile
        Prefill(512, 2048, LLAMA, window=1024),
        *(Prefill(512, 512, LLAMA, block=block) for block in (8, 32, 64)),
        Prefill(512, 512, Heads(16, 8, 256), softcap=50.0, sinks=True, window=128),
        *(
            shape
            for form in QUANTIZED
            for shape in (
                *(Prefill(512, 512, Heads(8, 2, dim), form=form) for dim in (64, 80, 128, 256)),
                *(Prefill(4, 512, Heads(8, 2, dim), form=form) for dim in (128, 256)),
                Prefill(512, 512, Heads(16, 8, 256), softcap=50.0, sinks=True, window=128, form=form),
                Prefill(512, 512, GPT_OSS, window=128, sinks=True, form=form),
            )
        ),
    ],
}
