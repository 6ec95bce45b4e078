"""Forbids single tokens in rows of logits: bound by the launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target
from benchmarks.kernels.draws import LLAMA, random_logits
from kernels.sampling.forbid_tokens import CANDIDATES, forbid_tokens, reference
from kernels.tuning import Config

LIMIT: Limit = "copy"
FORBIDDEN = -(2.0**98)

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Forbidden:
    """Describes so many tokens of each of 32 rows, half of them behind one that the step before has sampled."""

    tokens: int
    target: Target | None = None

    def __str__(self) -> str:
        return f"32 x {self.tokens} of {LLAMA}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says. Logits that are adjusted are fp32, in every model."""
        logits = random_logits(32, LLAMA, device, torch.float32)
        sampled = torch.arange(32, device=device)
        every = torch.arange(32 * self.tokens, dtype=torch.int32, device=device)
        rows, tokens = every // self.tokens, every * 7 % LLAMA
        entries = torch.stack((rows, tokens, torch.where(every % 2 == 0, rows, -1), rows))

        def run(config: Config | None) -> None:
            forbid_tokens(logits, entries, sampled, FORBIDDEN, config=config)

        def check(config: Config | None) -> None:
            found, expected = logits.clone(), logits.clone()
            forbid_tokens(found, entries, sampled, FORBIDDEN, config=config)
            reference(expected, entries, sampled, FORBIDDEN)
            assert torch.equal(found, expected)

        places = rows.long() * LLAMA + tokens

        def peer() -> Tensor:
            return logits.view(-1).index_fill_(0, places, FORBIDDEN)

        return Case(run, check, bytes=entries.nbytes + 8 * len(every), peers={"operators": peer})


SHAPES: Mapping[Size, Sequence[Forbidden]] = {
    "full": [Forbidden(tokens) for tokens in (2, 100)],
    "tiny": [Forbidden(3)],
    "compiled": [Forbidden(1)],
}
