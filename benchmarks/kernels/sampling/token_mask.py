"""Masks rows by a grammar's bits: bound by writing what is forbidden, and reading it before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target
from benchmarks.kernels.draws import LLAMA, QWEN, random_bits, random_logits
from kernels.sampling.token_mask import CANDIDATES, reference, token_mask
from kernels.tuning import Config

LIMIT: Limit = "copy"
FORBIDDEN = -(2.0**98)

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Masked:
    """Describes rows that are masked, each by bits of its own: half of them are set."""

    rows: int
    vocabulary: int
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.rows} x {self.vocabulary}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says. Logits that are adjusted are fp32, in every model."""
        logits = random_logits(self.rows, self.vocabulary, device, torch.float32)
        rows = torch.arange(self.rows, dtype=torch.int32, device=device)
        bits = random_bits((self.rows, -(-self.vocabulary // 32)), device)

        def run(config: Config | None) -> None:
            token_mask(logits, rows, bits, FORBIDDEN, config=config)

        def check(config: Config | None) -> None:
            found, expected = logits.clone(), logits.clone()
            token_mask(found, rows, bits, FORBIDDEN, config=config)
            reference(expected, rows, bits, FORBIDDEN)
            assert torch.equal(found, expected)

        allowed = torch.rand((self.rows, self.vocabulary), device=device) < 0.5

        def peer() -> Tensor:
            return torch.where(allowed, logits, FORBIDDEN)

        return Case(run, check, bytes=2 * logits.nbytes + bits.nbytes, peers={"operators": peer})


SHAPES: Mapping[Size, Sequence[Masked]] = {
    "full": [Masked(rows, vocabulary) for vocabulary in (LLAMA, QWEN) for rows in (1, 32, 256)],
    "tiny": [Masked(3, 1100)],
    "compiled": [Masked(2, 32_001), Masked(2, 49_152)],
}
