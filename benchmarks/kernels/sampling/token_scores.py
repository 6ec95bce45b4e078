"""Finds how likely tokens were: bound by reading their rows of logits once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target
from benchmarks.kernels.draws import LLAMA, QWEN, random_logits
from kernels.sampling.token_scores import CANDIDATES, reference, token_scores
from kernels.tuning import Config

LIMIT: Limit = "copy"
ERROR = 2.0**-19
"""Of log-probabilities above -32, in fp32, of sums of exponentials that a device approximates."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Scored:
    """Describes one token of each of `rows`, with `top` alternatives."""

    rows: int
    vocabulary: int
    top: int
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.rows} x {self.vocabulary}, top {self.top}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        top = self.top
        logits = random_logits(self.rows, self.vocabulary, device, dtype)
        rows, tokens = torch.arange(self.rows, device=device), logits.argmax(-1)

        def run(config: Config | None) -> Tensor:
            return token_scores(logits, rows, tokens, top, config=config)

        def check(config: Config | None) -> None:
            found, expected = run(config), reference(logits, rows, tokens, top)
            assert torch.equal(found[:, 1 : 2 + top], expected[:, 1 : 2 + top]), "ranks or ids"
            one, other = (each[:, [0, *range(2 + top, 2 + 2 * top)]].view(torch.float32) for each in (found, expected))
            assert float((one - other).abs().max()) <= ERROR, "log-probabilities"

        def peer() -> tuple[Tensor, Tensor]:
            logprobs = logits.float().log_softmax(-1)
            return logprobs.gather(1, tokens[:, None]), logprobs.topk(max(1, top)).values

        return Case(run, check, bytes=logits.nbytes, peers={"operators": peer})


SHAPES: Mapping[Size, Sequence[Scored]] = {
    "full": [
        *(Scored(rows, vocabulary, 5) for vocabulary in (LLAMA, QWEN) for rows in (1, 32, 256)),
        *(Scored(rows, QWEN, top) for rows in (32, 256) for top in (0, 20)),
    ],
    "tiny": [Scored(2, 100, 20), Scored(3, 2100, 0)],
    "compiled": [Scored(2, 32_001, 5), Scored(2, 49_152, 20), Scored(2, LLAMA, 20)],
}
