"""Rows of sampling: drawing, filters, penalties, masks and scores, bound by reading or writing logits."""

from math import inf, log
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Inputs, Kernel, changing, equal, grid, returning
from benchmarks.kernels.kv import processors
from kernels.sampling import forbid_tokens, penalize, sample, score_floor, token_mask, token_scores
from kernels.sampling.sample_settings import SampleSettings

LLAMA, QWEN = 128_256, 151_936
"""Vocabularies of Llama 3 and Qwen 3."""
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


PLAIN, FILTERED = Filters(), Filters(top_k=50, top_p=0.9)


def logits_of(inputs: Inputs, rows: int, vocabulary: int, dtype: torch.dtype | None = None) -> Tensor:
    return inputs.normal(rows, vocabulary, dtype=dtype).mul_(LOGIT_SPREAD)


def draw(inputs: Inputs, rows: int, vocabulary: int, filters: Filters = PLAIN) -> Case:
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

    return returning(
        lambda config: sample.sample(logits, settings, keys, filtered=filters.on, config=config),
        lambda: sample.reference(logits, settings, keys, filtered=filters.on),
        same,
        bytes=logits.nbytes,
        peers={"operators": peer},
    )


def floor(inputs: Inputs, rows: int, vocabulary: int, filters: Filters) -> Case:
    """Finds the threshold of a sample's filters, reading logits several times; `bytes` counts a single reading."""
    logits, settings = logits_of(inputs, rows, vocabulary), filters.settings(rows, inputs.device)
    parts = sample.part_count(rows, vocabulary, processors(inputs.device))

    def same(found: Tensor, expected: Tensor) -> None:
        assert torch.equal(found, expected), f"rows {(found != expected).nonzero().flatten().tolist()}"

    return returning(
        lambda config: score_floor.score_floor(logits, settings, parts=parts, config=config),
        lambda: score_floor.reference(logits, settings),
        same,
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
    return changing(
        lambda logits, counts, config: penalize.penalize(logits, counts, texts, penalties, sampled, config=config),
        lambda logits, counts: penalize.reference(logits, counts, texts, penalties, sampled),
        logits,
        counts,
        same=equal,
        bytes=counts.nbytes,
        peers={"operators": lambda: logits - 0.2 * counts - 0.3 * (counts > 0)},
    )


def masked(inputs: Inputs, rows: int, vocabulary: int) -> Case:
    logits = logits_of(inputs, rows, vocabulary, torch.float32)
    every = torch.arange(rows, dtype=torch.int32, device=inputs.device)
    bits = inputs.words(rows, -(-vocabulary // 32))
    allowed = torch.rand((rows, vocabulary), device=inputs.device) < 0.5
    return changing(
        lambda logits, config: token_mask.token_mask(logits, every, bits, FORBIDDEN_LOGIT, config=config),
        lambda logits: token_mask.reference(logits, every, bits, FORBIDDEN_LOGIT),
        logits,
        same=equal,
        bytes=2 * logits.nbytes + bits.nbytes,
        peers={"operators": lambda: torch.where(allowed, logits, FORBIDDEN_LOGIT)},
    )


def forbidden(inputs: Inputs, tokens: int, rows: int = 32, vocabulary: int = LLAMA) -> Case:
    logits = logits_of(inputs, rows, vocabulary, torch.float32)
    sampled = torch.arange(rows, device=inputs.device)
    every = torch.arange(rows * tokens, dtype=torch.int32, device=inputs.device)
    owners, ids = every // tokens, every * 7 % vocabulary
    entries = torch.stack((owners, ids, torch.where(every % 2 == 0, owners, -1), owners))
    places = owners.long() * vocabulary + ids
    return changing(
        lambda logits, config: forbid_tokens.forbid_tokens(logits, entries, sampled, FORBIDDEN_LOGIT, config=config),
        lambda logits: forbid_tokens.reference(logits, entries, sampled, FORBIDDEN_LOGIT),
        logits,
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

    return returning(
        lambda config: token_scores.token_scores(logits, every, tokens, top, config=config),
        lambda: token_scores.reference(logits, every, tokens, top),
        same,
        bytes=logits.nbytes,
        peers={"operators": peer},
    )


BATCHES = [1, 32, 256]
KERNELS = {
    "sample": Kernel(
        "copy",
        sample.CANDIDATE_CONFIGS,
        draw,
        full=[
            *grid(rows=BATCHES, vocabulary=[LLAMA, QWEN]),
            *grid(rows=BATCHES, vocabulary=QWEN, filters=FILTERED),
            *grid(rows=256, vocabulary=QWEN, filters=[Filters(temperature=0.0), Filters(top_p=0.9, min_p=0.02)]),
        ],
        tiny=[
            *grid(rows=2, vocabulary=100, filters=[PLAIN, Filters(temperature=0.0)]),
            *grid(rows=3, vocabulary=70, filters=Filters(top_k=5, top_p=0.9)),
        ],
        compiled=[
            *grid(rows=2, vocabulary=32_000),
            *grid(rows=2, vocabulary=49_152, filters=Filters(top_k=50)),
            *grid(rows=2, vocabulary=LLAMA, filters=Filters(top_p=0.9)),
        ],
    ),
    "score_floor": Kernel(
        "copy",
        score_floor.CANDIDATE_CONFIGS,
        floor,
        full=[
            *grid(rows=BATCHES, vocabulary=QWEN, filters=FILTERED),
            *grid(rows=256, vocabulary=LLAMA, filters=Filters(top_p=0.9)),
        ],
        tiny=grid(rows=3, vocabulary=70, filters=Filters(top_k=5, top_p=0.9)),
        compiled=grid(rows=2, vocabulary=32_000, filters=Filters(top_k=50)),
    ),
    "penalize": Kernel(
        "copy",
        penalize.CANDIDATE_CONFIGS,
        penalized,
        full=grid(rows=BATCHES, vocabulary=[LLAMA, QWEN]),
        tiny=grid(rows=3, vocabulary=1100),
        compiled=grid(rows=2, vocabulary=[32_001, 49_152]),
    ),
    "token_mask": Kernel(
        "copy",
        token_mask.CANDIDATE_CONFIGS,
        masked,
        full=grid(rows=BATCHES, vocabulary=[LLAMA, QWEN]),
        tiny=grid(rows=3, vocabulary=1100),
        compiled=grid(rows=2, vocabulary=[32_001, 49_152]),
    ),
    "forbid_tokens": Kernel(
        "copy",
        forbid_tokens.CANDIDATE_CONFIGS,
        forbidden,
        full=grid(tokens=[2, 100]),
        tiny=grid(tokens=3),
        compiled=grid(tokens=1),
    ),
    "token_scores": Kernel(
        "copy",
        token_scores.CANDIDATE_CONFIGS,
        scored,
        full=[
            *grid(rows=BATCHES, vocabulary=[LLAMA, QWEN], top=5),
            *grid(rows=[32, 256], vocabulary=QWEN, top=[0, 20]),
        ],
        tiny=[*grid(rows=2, vocabulary=100, top=20), *grid(rows=3, vocabulary=2100, top=0)],
        compiled=[*grid(rows=2, vocabulary=32_001, top=5), *grid(rows=2, vocabulary=[49_152, LLAMA], top=20)],
    ),
}
