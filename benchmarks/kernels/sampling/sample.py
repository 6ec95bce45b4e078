"""Draws next tokens from logits: bound by reading those once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target
from benchmarks.kernels.draws import LLAMA, QWEN, Filters, random_bits, random_logits
from kernels.sampling.sample import CANDIDATES, reference, sample
from kernels.tuning import Config

LIMIT: Limit = "copy"

PLAIN = Filters()

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Draw:
    """Describes one sample of each of `rows`."""

    rows: int
    vocabulary: int
    filters: Filters = PLAIN
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.rows} x {self.vocabulary}, {self.filters}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        logits = random_logits(self.rows, self.vocabulary, device, dtype)
        settings, keys = self.filters.of_each(self.rows, device), random_bits((self.rows, 2), device)

        def run(config: Config | None) -> tuple[Tensor, Tensor]:
            return sample(logits, settings, keys, filtered=self.filters.on, config=config)

        def check(config: Config | None) -> None:
            tokens, finite = run(config)
            expected, expected_finite = reference(logits, settings, keys, filtered=self.filters.on)
            assert torch.equal(tokens, expected), f"tokens of rows {(tokens != expected).nonzero().flatten().tolist()}"
            assert torch.equal(finite, expected_finite), "rows that are finite"

        return Case(run, check, bytes=logits.nbytes, peers={"operators": self._peer(logits)})

    def _peer(self, logits: Tensor) -> Callable[[], Tensor]:
        """Draws from the same distribution, by noise of PyTorch's own: exponential numbers divide shares."""
        temperature, top_k, top_p, min_p = self.filters

        def run() -> Tensor:
            if not temperature:
                return logits.argmax(-1)
            scaled = logits.float() / temperature
            if top_k:
                scaled.masked_fill_(scaled < scaled.topk(top_k).values[:, -1:], -inf)
            shares = scaled.softmax(-1)
            if top_p < 1:
                ordered, ids = shares.sort(-1, descending=True)
                ordered.masked_fill_(ordered.cumsum(-1) - ordered > top_p, 0.0)
                shares = torch.zeros_like(shares).scatter_(-1, ids, ordered)
            if min_p:
                shares.masked_fill_(shares < min_p * shares.amax(-1, keepdim=True), 0.0)
            return (shares / torch.empty_like(shares).exponential_()).argmax(-1)

        return run


SHAPES: Mapping[Size, Sequence[Draw]] = {
    "full": [
        *(Draw(rows, vocabulary) for vocabulary in (LLAMA, QWEN) for rows in (1, 32, 256)),
        *(Draw(rows, QWEN, Filters(top_k=50, top_p=0.9)) for rows in (1, 32, 256)),
        Draw(256, QWEN, Filters(temperature=0.0)),
        Draw(256, QWEN, Filters(top_p=0.9, min_p=0.02)),
    ],
    "tiny": [
        Draw(2, 100),
        Draw(3, 70, Filters(top_k=5, top_p=0.9)),
        Draw(2, 100, Filters(temperature=0.0)),
    ],
    "compiled": [
        Draw(2, 32_000),
        Draw(2, 49_152, Filters(top_k=50)),
        Draw(2, LLAMA, Filters(top_p=0.9)),
    ],
}
