"""Penalizes tokens that texts have already: bound by reading the counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target
from benchmarks.kernels.draws import LLAMA, QWEN, random_logits
from kernels.sampling.penalize import CANDIDATES, penalize, reference
from kernels.tuning import Config

LIMIT: Limit = "copy"
SEEN = 1000
"""Tokens in a text, most of them different."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Penalized:
    """Describes rows of which each is penalized for a text of `SEEN` tokens."""

    rows: int
    vocabulary: int
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.rows} x {self.vocabulary}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says. Logits that are adjusted are fp32, in every model."""
        rows = self.rows
        logits = random_logits(rows, self.vocabulary, device, torch.float32)
        counts = torch.zeros((rows, self.vocabulary), dtype=torch.int32, device=device)
        tokens = torch.randint(0, self.vocabulary, (rows, SEEN), device=device)
        counts.scatter_(1, tokens, torch.full_like(tokens, 2, dtype=torch.int32))
        every = torch.arange(rows, dtype=torch.int32, device=device)
        texts, sampled = torch.stack((every, every, every)), tokens[:, 0].contiguous()
        penalties = torch.tensor([[1.1], [0.2], [0.3]], device=device).repeat(1, rows)

        def run(config: Config | None) -> None:
            penalize(logits, counts, texts, penalties, sampled, config=config)

        def check(config: Config | None) -> None:
            found, expected = [(logits.clone(), counts.clone()) for _ in range(2)]
            penalize(*found, texts, penalties, sampled, config=config)
            reference(*expected, texts, penalties, sampled)
            assert all(map(torch.equal, found, expected)), "logits or counts"

        def peer() -> Tensor:
            return logits - 0.2 * counts - 0.3 * (counts > 0)

        return Case(run, check, bytes=counts.nbytes, peers={"operators": peer})


SHAPES: Mapping[Size, Sequence[Penalized]] = {
    "full": [Penalized(rows, vocabulary) for vocabulary in (LLAMA, QWEN) for rows in (1, 32, 256)],
    "tiny": [Penalized(3, 1100)],
    "compiled": [Penalized(2, 32_001), Penalized(2, 49_152)],
}
