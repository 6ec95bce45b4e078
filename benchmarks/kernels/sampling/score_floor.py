"""Finds the threshold that a sample's filters come to: bound by reading the logits, several times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.attention.paging import processors
from benchmarks.kernels.case import Case, Limit, Size, Target
from benchmarks.kernels.draws import LLAMA, QWEN, Filters, random_logits
from kernels.sampling.sample import part_count
from kernels.sampling.score_floor import CANDIDATES, reference, score_floor
from kernels.tuning import Config

LIMIT: Limit = "copy"

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Floor:
    """Describes one sample of each of `rows`."""

    rows: int
    vocabulary: int
    filters: Filters
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.rows} x {self.vocabulary}, {self.filters}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says. The bytes are those of one reading."""
        logits = random_logits(self.rows, self.vocabulary, device, dtype)
        settings = self.filters.of_each(self.rows, device)
        parts = part_count(self.rows, self.vocabulary, processors(device))

        def run(config: Config | None) -> Tensor:
            return score_floor(logits, settings, parts=parts, config=config)

        def check(config: Config | None) -> None:
            found, expected = run(config), reference(logits, settings)
            assert torch.equal(found, expected), f"rows {(found != expected).nonzero().flatten().tolist()}"

        return Case(run, check, bytes=logits.nbytes, peers={"operators": lambda: reference(logits, settings)})


SHAPES: Mapping[Size, Sequence[Floor]] = {
    "full": [
        *(Floor(rows, QWEN, Filters(top_k=50, top_p=0.9)) for rows in (1, 32, 256)),
        Floor(256, LLAMA, Filters(top_p=0.9)),
    ],
    "tiny": [Floor(3, 70, Filters(top_k=5, top_p=0.9))],
    "compiled": [Floor(2, 32_000, Filters(top_k=50))],
}
