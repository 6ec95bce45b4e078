"""Chooses next tokens from logits: the largest, or a draw by the Gumbel-max trick from the filtered tokens.

    score = logit / temperature
    token = argmax over scores >= floor of (score - log(-log u)), u uniform by counters

(Gumbel, "Statistical theory of extreme values", 1954; Maddison et al., "A* sampling", 2014, for the trick.) Filters are
one threshold, `kernels.sampling.score_floor`. Each uniform number is a hash of a sample's key and the vocabulary id, so
a draw depends only on its row and its sample. Several programs share a row, so that one row fills the card; a second
kernel takes the best of a row's parts. Of equal scores the lowest id is drawn. Logarithms may differ from other
devices' in their last bit; the rest of a score is the same to the bit, since the division by the temperature is IEEE's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device import processors
from kernels.launching import launched_directly
from kernels.sampling import score_floor as filters
from kernels.sampling.sample_settings import SampleSettings, part_of_row
from kernels.sampling.score_floor import MAX_PARTS, MAX_VOCAB, score_floor
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"TILE": 1024}, warps=4),
    Config({"TILE": 512}, warps=4),
    Config({"TILE": 1024}, warps=8),
    Config({"TILE": 2048}, warps=8),
)
"""The first is the default."""

MIN_PART_LOGITS = 1024
"""Minimum number of logits for a program."""

PROGRAMS_PER_PROCESSOR = 8
"""Programs for each processor, to balance programs that end early."""

LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

PARTS_TILE: tl.constexpr = tl.constexpr(MAX_PARTS)


def unsupported(dtype: torch.dtype, vocab: int) -> str:
    """Returns one sentence that says why logits of this kind cannot be sampled from; empty if supported."""
    if dtype not in LOGIT_DTYPES:
        return f"sample supports logits in {', '.join(map(str, LOGIT_DTYPES))}, not {dtype}"
    return f"sample supports vocabularies of up to {MAX_VOCAB} tokens, not {vocab}" if vocab > MAX_VOCAB else ""


def part_count(samples: int, vocab: int, processors: int) -> int:
    """Returns how many programs share one row: enough to keep the processors busy, each with enough to do."""
    wanted = -(-PROGRAMS_PER_PROCESSOR * processors // samples)
    return max(1, min(wanted, -(-vocab // MIN_PART_LOGITS), MAX_PARTS))


def sample(
    logits: Tensor,
    settings: SampleSettings,
    keys: Tensor,
    *,
    filtered: bool,
    parts: int | None = None,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """Draws a token for each sample. Token 0 is drawn where a row has NaN or infinity.

    Args:
        logits: `[rows, vocab]` fp32, bf16 or fp16; rows may be strided.
        settings: how each sample is drawn, and from which row; several may draw from one.
        keys: `[samples, 2]` int32, contiguous: keys of the samples' random numbers.
        filtered: whether any sample has a temperature, and top_k, top_p or min_p; if False, these are ignored.
        parts: programs that share each row; by default as many as fill the device.

    Returns tokens `[samples]` int64, and whether their rows were finite `[samples]` bool.

    Example: the largest of row 0, and two samples of row 1: logits `[2, 128256]`, keys `[3, 2]`, settings with rows
    `[0, 1, 1]`, temperature `[0, 0.7, 0.7]`, top_k `[0, 0, 0]`, top_p `[1, 1, 1]`, min_p_reach `[-inf, -inf, -inf]`.
    """
    (_, vocab), device = logits.shape, logits.device
    rows, temperature, top_p = settings.rows, settings.temperature, settings.top_p
    samples = len(rows)
    why = unsupported(logits.dtype, vocab)
    assert not why, why
    assert logits.stride(1) == 1 and keys.shape == (samples, 2)
    assert top_p.dtype in (torch.float32, torch.float64)
    kinds = (torch.int32, torch.float32, torch.int32, top_p.dtype, torch.float32)
    for each, kind in zip(settings, kinds, strict=True):
        assert each.shape == (samples,) and each.dtype == kind and each.is_contiguous()
    assert keys.dtype == torch.int32 and keys.is_contiguous()
    parts = parts or part_count(samples, vocab, processors(device))
    floors = score_floor(logits, settings, parts=parts) if filtered else None
    config = config or tuned("sample", str(logits.dtype).removeprefix("torch."), device, CANDIDATE_CONFIGS[0])
    best = torch.empty((samples, parts), dtype=torch.float32, device=device)
    ids = torch.empty((samples, parts), dtype=torch.int32, device=device)  # -1: not finite
    tokens = torch.empty(samples, dtype=torch.int64, device=device)
    finite = torch.empty(samples, dtype=torch.bool, device=device)
    _draw[(samples, parts)](
        logits, logits.stride(0), vocab, rows, temperature, keys, floors, best, ids, **config.options()
    )
    _best[(samples,)](best, ids, parts, tokens, finite)
    return tokens, finite


@triton.jit
def _noise(ids: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Computes standard Gumbel noise of vocabulary ids and a key's two uint32 words: -log(-log(1 - v)), v of 31 bits.

    1 - v is rounded; what that lost is small, and added to the logarithm as a first-order term.
    """
    bits = ids.to(tl.uint32) * 0x9E3779B9 + low
    bits = (bits ^ (bits >> 16)) * 0x21F0AAAD
    bits = ((bits ^ (bits >> 15)) + high) * 0xD35A2D97
    bits = (bits ^ (bits >> 15)) & 0x7FFFFFFF
    v = (bits.to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2^-31
    v = tl.minimum(v, 0.999999940395355224609375)  # 1 - 2^-24
    u = 1.0 - v
    return -tl.log(-(tl.log(u) + ((1.0 - u) - v) / u))


@launched_directly
@triton.jit
def _draw(
    logits: tl.tensor,
    stride: tl.tensor,
    vocab: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    keys: tl.tensor,
    floors: tl.tensor,
    best_scores: tl.tensor,
    best_ids: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    sample, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    temperature = tl.load(temperatures + sample)
    low = tl.load(keys + sample * 2).to(tl.uint32, bitcast=True)
    high = tl.load(keys + sample * 2 + 1).to(tl.uint32, bitcast=True)
    floor = tl.full([], -float("inf"), tl.float32)
    if floors is not None:
        floor = tl.load(floors + sample)
    row, first, end = part_of_row(logits, stride, vocab, rows, sample)
    best = tl.full([TILE], -float("inf"), tl.float32)
    best_id = tl.zeros([TILE], tl.int32)
    bad = tl.zeros([TILE], tl.int1)
    for begin in range(first, end, TILE):
        ids = begin + tl.arange(0, TILE)
        valid = ids < end
        score = tl.load(row + ids, mask=valid, other=0.0).to(tl.float32)
        bad = bad | ~(tl.abs(score) < float("inf"))
        if temperature > 0:
            score = tl.div_rn(score, temperature)
            valid = valid & (score >= floor)
            if floors is not None:
                if tl.max(valid.to(tl.int32), 0) > 0:  # often there are none, and noise is expensive
                    score += _noise(ids, low, high)
            else:
                score += _noise(ids, low, high)
        better = valid & (score > best)
        best = tl.where(better, score, best)
        best_id = tl.where(better, ids, best_id)
    score = tl.max(best, 0)
    lowest = tl.min(tl.where(best == score, best_id, 0x7FFFFFFF), 0)
    tl.store(best_scores + sample * parts + part, score)
    tl.store(best_ids + sample * parts + part, tl.where(tl.max(bad.to(tl.int32), 0) > 0, -1, lowest))


@launched_directly
@triton.jit(do_not_specialize=["parts"])
def _best(scores: tl.tensor, ids: tl.tensor, parts: tl.tensor, tokens: tl.tensor, finite: tl.tensor) -> None:
    sample, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS_TILE)
    score = tl.load(scores + sample * parts + part, mask=part < parts, other=-float("inf"))
    token = tl.load(ids + sample * parts + part, mask=part < parts, other=0)
    good = tl.min(token, 0) >= 0
    lowest = tl.min(tl.where(score == tl.max(score, 0), token, 0x7FFFFFFF), 0)
    tl.store(tokens + sample, tl.where(good, lowest, 0).to(tl.int64))
    tl.store(finite + sample, good)


def reference(logits: Tensor, settings: SampleSettings, keys: Tensor, *, filtered: bool) -> tuple[Tensor, Tensor]:
    """Computes the same with torch operators, on all of a sample's scores at once."""
    vocab, random = logits.shape[1], (settings.temperature > 0)[:, None]
    unscaled = logits[settings.rows].float()
    scaled = torch.where(random, unscaled / settings.temperature[:, None], unscaled)
    scores = torch.where(random, scaled + reference_noise(keys, vocab), unscaled)
    if filtered:
        floor = filters.reference(logits, settings)
        scores = scores.masked_fill(scaled < floor[:, None], -torch.inf)
    finite = unscaled.isfinite().all(-1)
    return scores.argmax(-1).masked_fill(~finite, 0), finite


def reference_noise(keys: Tensor, vocab: int) -> Tensor:
    """Computes the kernel's Gumbel noise, fp32 `[samples, vocab]`; products of words are cut to 32 bits."""
    word = 0xFFFFFFFF
    low, high = keys.long()[:, :1], keys.long()[:, 1:]
    bits = (torch.arange(vocab, device=keys.device) * 0x9E3779B9 + low) & word
    bits = ((bits ^ (bits >> 16)) * 0x21F0AAAD) & word
    bits = (((bits ^ (bits >> 15)) + high) * 0xD35A2D97) & word
    bits = (bits ^ (bits >> 15)) & 0x7FFFFFFF
    v = ((bits.float() + 0.5) * 2.0**-31).clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-v))
