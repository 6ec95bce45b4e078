"""Rows of sampling: drawing, filters, penalties, masks and scores, bound by reading or writing logits."""

from functools import partial
from math import inf, log
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Inputs, compared, equal
from benchmarks.kernels.kv import processors
from kernels.sampling import forbid_tokens, penalize, sample, score_floor, token_mask, token_scores
from kernels.sampling.sample_settings import SampleSettings

LOGIT_SPREAD = 3.0
FORBIDDEN_LOGIT = -(2.0**98)
TEXT_TOKENS = 1000
"""Tokens of a penalized text, most of them different."""
MAX_LOGPROB_ERROR = 2.0**-19
"""Of log-probabilities above -32, fp32, from sums of exponentials that a device approximates."""


class Filters(NamedTuple):
    """A sample's filters. `top_k` 0, `top_p` 1 and `min_p` 0 are off; `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __str__(self) -> str:
        return "/".join(f"{value:g}" for value in self)

    @property
    def on(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def settings(self, rows: int, device: torch.device) -> SampleSettings:
        def each(value: float, kind: torch.dtype) -> Tensor:
            return torch.full((rows,), value, dtype=kind, device=device)

        return SampleSettings(
            torch.arange(rows, dtype=torch.int32, device=device),
            each(self.temperature, torch.float32),
            each(self.top_k, torch.int32),
            each(self.top_p, torch.float32),
            each(log(self.min_p) if self.min_p else -inf, torch.float32),
        )


UNFILTERED = Filters()


def logits_of(inputs: Inputs, rows: int, vocabulary: int, dtype: torch.dtype | None = None) -> Tensor:
    return inputs.normal(rows, vocabulary, dtype=dtype).mul_(LOGIT_SPREAD)


def draw(inputs: Inputs, rows: int, vocabulary: int, filters: Filters = UNFILTERED) -> Case:
    logits = logits_of(inputs, rows, vocabulary)
    settings, keys = filters.settings(rows, inputs.device), inputs.words(rows, 2)
    temperature, top_k, top_p, min_p = filters

    def same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
        assert torch.equal(found[0], expected[0]), f"rows {(found[0] != expected[0]).nonzero().flatten().tolist()}"
        assert torch.equal(found[1], expected[1]), "rows that are finite"

    def peer() -> Tensor:
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

    return compared(
        partial(sample.sample, filtered=filters.on),
        partial(sample.reference, filtered=filters.on),
        *(logits, settings, keys),
        same=same,
        bytes=logits.nbytes,
        peers={"operators": peer},
    )


def floor(inputs: Inputs, rows: int, vocabulary: int, filters: Filters) -> Case:
    """Finds the threshold of a sample's filters, reading logits several times; `bytes` counts a single reading."""
    logits, settings = logits_of(inputs, rows, vocabulary), filters.settings(rows, inputs.device)
    parts = sample.part_count(rows, vocabulary, processors(inputs.device))

    def same(found: Tensor, expected: Tensor) -> None:
        assert torch.equal(found, expected), f"rows {(found != expected).nonzero().flatten().tolist()}"

    return compared(
        partial(score_floor.score_floor, parts=parts),
        score_floor.reference,
        *(logits, settings),
        same=same,
        bytes=logits.nbytes,
        peers={"operators": lambda: score_floor.reference(logits, settings)},
    )


def penalized(inputs: Inputs, rows: int, vocabulary: int) -> Case:
    logits = logits_of(inputs, rows, vocabulary, torch.float32)
    counts = torch.zeros((rows, vocabulary), dtype=torch.int32, device=inputs.device)
    tokens = inputs.up_to(vocabulary, rows, TEXT_TOKENS)
    counts.scatter_(1, tokens, torch.full_like(tokens, 2, dtype=torch.int32))
    every = torch.arange(rows, dtype=torch.int32, device=inputs.device)
    texts, sampled = torch.stack((every, every, every)), tokens[:, 0].contiguous()
    penalties = torch.tensor([[1.1], [0.2], [0.3]], device=inputs.device).repeat(1, rows)
    return compared(
        penalize.penalize,
        penalize.reference,
        *(logits, counts, texts, penalties, sampled),
        changed=2,
        same=equal,
        bytes=counts.nbytes,
        peers={"operators": lambda: logits - 0.2 * counts - 0.3 * (counts > 0)},
    )


def masked(inputs: Inputs, rows: int, vocabulary: int) -> Case:
    logits = logits_of(inputs, rows, vocabulary, torch.float32)
    every = torch.arange(rows, dtype=torch.int32, device=inputs.device)
    bits = inputs.words(rows, -(-vocabulary // 32))
    allowed = torch.rand((rows, vocabulary), device=inputs.device) < 0.5
    return compared(
        token_mask.token_mask,
        token_mask.reference,
        *(logits, every, bits, FORBIDDEN_LOGIT),
        changed=1,
        same=equal,
        bytes=2 * logits.nbytes + bits.nbytes,
        peers={"operators": lambda: torch.where(allowed, logits, FORBIDDEN_LOGIT)},
    )


def forbidden(inputs: Inputs, tokens: int, rows: int = 32, vocabulary: int = 128_256) -> Case:
    logits = logits_of(inputs, rows, vocabulary, torch.float32)
    sampled = torch.arange(rows, device=inputs.device)
    every = torch.arange(rows * tokens, dtype=torch.int32, device=inputs.device)
    owners, ids = every // tokens, every * 7 % vocabulary
    entries = torch.stack((owners, ids, torch.where(every % 2 == 0, owners, -1), owners))
    places = owners.long() * vocabulary + ids
    return compared(
        forbid_tokens.forbid_tokens,
        forbid_tokens.reference,
        *(logits, entries, sampled, FORBIDDEN_LOGIT),
        changed=1,
        same=equal,
        bytes=entries.nbytes + 8 * len(every),
        peers={"operators": lambda: logits.view(-1).index_fill_(0, places, FORBIDDEN_LOGIT)},
    )


def scored(inputs: Inputs, rows: int, vocabulary: int, top: int) -> Case:
    logits = logits_of(inputs, rows, vocabulary)
    every, tokens = torch.arange(rows, device=inputs.device), logits.argmax(-1)

    def same(found: Tensor, expected: Tensor) -> None:
        assert torch.equal(found[:, 1 : 2 + top], expected[:, 1 : 2 + top]), "ranks or ids"
        one, other = (each[:, [0, *range(2 + top, 2 + 2 * top)]].view(torch.float32) for each in (found, expected))
        assert float((one - other).abs().max()) <= MAX_LOGPROB_ERROR, "log-probabilities"

    def peer() -> tuple[Tensor, Tensor]:
        logprobs = logits.float().log_softmax(-1)
        return logprobs.gather(1, tokens[:, None]), logprobs.topk(max(1, top)).values

    return compared(
        token_scores.token_scores,
        token_scores.reference,
        *(logits, every, tokens, top),
        same=same,
        bytes=logits.nbytes,
        peers={"operators": peer},
    )
