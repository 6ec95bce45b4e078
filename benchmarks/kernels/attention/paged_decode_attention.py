"""Attends with one query a sequence, or with a few, over all of its KV: bound by reading that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.attention.attention_peers import decode_peers
from benchmarks.kernels.attention.paging import BLOCK, GEMMA, GEMMA_2, GPT_OSS, LLAMA, QWEN, Heads, paged, processors
from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.quantized.kv import QUANTIZED, KVForm, bytes_of_vector, named
from kernels.attention.attention_tiles import PLAIN, Scoring
from kernels.attention.decode_pieces import cut, may_be_cut, pieces_of, room_for_pieces
from kernels.attention.few_rows import FewRows
from kernels.attention.paged_decode_attention import CANDIDATES, paged_decode_attention, reference
from kernels.tuning import Config

LIMIT: Limit = "copy"
CHECKED = 4
"""Sequences that are compared with the reference: it would not fit into memory with all of a large batch."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Decode:
    """Describes one query of each of `batch` sequences; `flex`: beside FlexAttention, which compiles for seconds.

    With `sinks` each head has one. Of several `queries` all but the first are guesses, which branch if they are said
    to.
    """

    batch: int
    context: int
    heads: Heads
    target: Target | None = None
    window: int = 0
    block: int = BLOCK
    flex: bool = False
    softcap: float = 0.0
    sinks: bool = False
    form: KVForm = "numbers"
    queries: int = 1
    branching: bool = False

    def __str__(self) -> str:
        more = [f"window {self.window}"] if self.window else []
        more += [f"soft cap {self.softcap:g}"] if self.softcap else []
        more += ["sinks"] if self.sinks else []
        more += [f"blocks of {self.block}"] if self.block != BLOCK else []
        more += named(self.form)
        more += [f"{self.queries} queries{' that branch' if self.branching else ''}"] if self.queries > 1 else []
        return ", ".join([f"batch {self.batch}, context {self.context}, {self.heads}", *more])

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        kv = paged(self.batch, self.context, self.heads, self.block, device, dtype, self.form)
        queries = random((self.batch * self.queries, self.heads.queries, self.heads.dim), device, dtype)
        scoring = Scoring(window=self.window, softcap=self.softcap)
        sinks = random((self.heads.queries,), device, torch.float32) if self.sinks else None
        few = self._few(device) if self.queries > 1 else None
        pieces = None
        if may_be_cut(self.context, self.window):
            room = room_for_pieces(processors(device), self.heads.keys)
            lengths = np.full(self.batch, self.context)
            planned = torch.from_numpy(cut(lengths, room, self.window)).to(device)
            pieces = pieces_of(planned, self.batch, room)

        def run(config: Config | None) -> Tensor:
            return paged_decode_attention(
                queries,
                kv.pool,
                kv.tables,
                kv.lengths,
                few=few,
                pieces=pieces,
                scoring=scoring,
                sinks=sinks,
                config=config,
            )

        def check(config: Config | None) -> None:
            some = min(CHECKED, self.batch)
            own = queries[: some * self.queries].double()
            rows = few and few.first(some)
            expected = reference(own, *kv.exact(some, self.heads.dim), few=rows, scoring=scoring, sinks=sinks)
            close(run(config)[: len(expected)], expected)

        comparable = (
            scoring == PLAIN and few is None and self.form == "numbers" and not self.sinks and device.type != "meta"
        )
        seen = min(self.context, self.window or self.context)
        stored = self.batch * seen * self.heads.keys * bytes_of_vector(self.form, dtype, self.heads.dim)
        return Case(
            run,
            check,
            bytes=2 * (stored + queries.numel() * dtype.itemsize),
            operations=4 * queries.numel() * seen,
            peers=decode_peers(queries, *kv.contiguous(), self.flex) if comparable else {},
        )

    def _few(self, device: torch.device) -> FewRows:
        """Says which rows are a sequence's; guesses that branch are pairs of ways from the newest token on."""
        first = self.context - self.queries
        starts = torch.arange(self.batch, dtype=torch.int32) * self.queries
        counts = torch.full_like(starts, self.queries)
        sights = None
        if self.branching:
            rows = [(first, first, 0)]
            for guess in range(self.queries - 1):
                way = sum(1 << other for other in range(guess % 2, guess + 1, 2))
                rows.append((first + 1 + guess // 2, first, way))
            sights = torch.tensor(rows * self.batch).T.contiguous().to(device)
        return FewRows(starts.to(device), counts.to(device), self.queries, sights)


TARGETS = {(32, 4096): Target(0.85), (1, 32768): Target(0.75)}
MOST_TOKENS = 1 << 20
"""Of a row's batch: 4 GiB of KV of one layer."""

SHAPES: Mapping[Size, Sequence[Decode]] = {
    "full": [
        Decode(batch, context, heads, target, flex=target is not None)
        for heads in (LLAMA, QWEN)
        for context in (2048, 4096, 32768)
        for batch in (1, 8, 32, 128, 256)
        if batch * context <= MOST_TOKENS
        for target in [TARGETS.get((batch, context)) if heads == LLAMA else None]
    ]
    + [
        shape
        for batch in (8, 128)
        for shape in (
            Decode(batch, 4096, GEMMA_2, softcap=50.0),
            Decode(batch, 4096, GEMMA, window=1024),
            Decode(batch, 4096, GPT_OSS, sinks=True),
            Decode(batch, 4096, GPT_OSS, sinks=True, window=128),
        )
    ]
    + [
        Decode(batch, context, heads, form=form)
        for form in QUANTIZED
        for heads, batch, context in ((LLAMA, 1, 32768), (LLAMA, 32, 4096), (GPT_OSS, 32, 4096), (GEMMA, 32, 4096))
    ]
    + [
        Decode(batch, 4096, LLAMA, queries=queries, branching=branching)
        for batch in (1, 8, 32)
        for queries, branching in ((4, False), (8, False), (8, True))
    ],
    "tiny": [
        *(Decode(3, 40, Heads(4, 2, 16), queries=4, branching=branching) for branching in (False, True)),
        Decode(3, 40, Heads(4, 2, 16)),
        Decode(1, 33, Heads(4, 1, 32), window=9, block=8, softcap=9.0, sinks=True),
        *(Decode(3, 40, Heads(4, 2, 16), form=form) for form in QUANTIZED),
    ],
    "compiled": [
        *(
            Decode(8, 2048, heads, queries=8, branching=branching, form=form)
            for heads in (LLAMA, Heads(8, 8, 64), Heads(8, 2, 256), Heads(16, 1, 128))
            for branching in (False, True)
            for form in ("numbers", *QUANTIZED)
        ),
        *(Decode(8, 2048, Heads(8, 2, dim)) for dim in (16, 32, 64, 80, 96, 128, 192, 256)),
        *(Decode(1, 32768, heads) for heads in (LLAMA, QWEN, Heads(8, 8, 128), Heads(16, 1, 128))),
        Decode(256, 2048, LLAMA),
        Decode(8, 2048, LLAMA, window=1024),
        *(Decode(8, 2048, LLAMA, block=block) for block in (8, 32, 64)),
        Decode(256, 2048, Heads(16, 8, 256), softcap=50.0, sinks=True),
        *(
            shape
            for form in QUANTIZED
            for shape in (
                *(Decode(8, 2048, Heads(8, 2, dim), form=form) for dim in (64, 80, 128, 256)),
                Decode(8, 2048, Heads(16, 1, 128), form=form),
                Decode(8, 2048, Heads(8, 8, 128), form=form),
                Decode(256, 2048, Heads(16, 8, 256), softcap=50.0, sinks=True, form=form),
                Decode(8, 2048, GPT_OSS, window=128, sinks=True, form=form),
            )
        ),
    ],
}
