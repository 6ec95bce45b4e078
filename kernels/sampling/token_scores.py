"""Finds how likely tokens were in their rows of logits: log-probabilities, ranks, and the likeliest of each row.

    logprob = logit - largest - log(sum over the row of exp(logit - largest))
    rank = 1 + how many logits are larger

The row is cut into tiles, each of which is one program's: it keeps its largest logit, its sum behind that, how many
logits are larger than the token's, and its likeliest tokens, found one after the other as the largest of numbers that
rise with the logit and fall with the id. So of equal logits the lower id comes first. A second kernel joins the tiles
of a row, in one order (the online softmax of Milakov and Gimelshein, 2018, in two steps); logarithms are fp64's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.sizes import power_of_two, tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"TILE": 2048}, warps=4),
    Config({"TILE": 1024}, warps=4),
    Config({"TILE": 4096}, warps=8),
    Config({"TILE": 2048}, warps=8),
)
"""The first is the default."""

MAX_TOP: tl.constexpr = tl.constexpr(20)
"""Maximum number of most likely tokens of a row."""

LEAST_LOGPROB: tl.constexpr = tl.constexpr(-9999.0)
"""Minimum of reported log-probabilities."""

NO_LOGIT: tl.constexpr = tl.constexpr(torch.finfo(torch.float32).min)
"""Padding after the end of a row, and replacement for non-finite values: no logit is smaller, and differences of two
are finite."""

NAN_BITS: tl.constexpr = tl.constexpr(0x7FC00000)
"""The bits of NaN: the log-probability of a token in a row that is not finite."""

NO_KEY: tl.constexpr = tl.constexpr(-(1 << 63))
"""Less than the mapped value of any logit."""


def token_scores(logits: Tensor, rows: Tensor, tokens: Tensor, top: int, *, config: Config | None = None) -> Tensor:
    """Finds how likely each of `tokens` was, and the `top` likeliest tokens of its row.

    Args:
        logits: `[rows, vocab]` fp32, bf16 or fp16; rows may be strided.
        rows: `[tokens]` int64, each token's row.
        tokens: `[tokens]` int64, ids.
        top: at most `MAX_TOP`, and `vocab`.

    Returns int32 `[tokens, 2 + 2 x top]`: the bits of the log-probability (fp32), the rank, the ids of the likeliest
    tokens, and the bits of their log-probabilities. Where the row is not finite, the first is NaN, the others anything.

    Example: two tokens of row 0, with five alternatives each: logits `[1, 128256]`, rows `[0, 0]`, tokens `[17, 4]`.
    """
    count, vocab = len(tokens), logits.shape[1]
    assert logits.stride(1) == 1 and 0 <= top <= min(MAX_TOP.value, vocab)
    assert rows.dtype == tokens.dtype == torch.int64 and rows.is_contiguous() and tokens.is_contiguous()
    device = logits.device
    config = config or tuned("token_scores", str(logits.dtype).removeprefix("torch."), device, CANDIDATE_CONFIGS[0])
    parts = tile_count(vocab, config.tiles["TILE"])
    largest, sums = (torch.empty((count, parts), dtype=torch.float32, device=device) for _ in range(2))
    above = torch.empty((count, parts), dtype=torch.int32, device=device)
    keys = torch.empty((count, MAX_TOP.value, parts), dtype=torch.int64, device=device)
    words = torch.empty((count, 2 + 2 * top), dtype=torch.int32, device=device)
    row = (logits, logits.stride(0), rows, tokens)
    _tiles[(count, parts)](*row, vocab, top, largest, sums, above, keys, **config.options())
    rooms = {"PARTS": power_of_two(parts), "KEYS": power_of_two(MAX_TOP.value * parts)}
    _join[(count,)](*row, top, parts, largest, sums, above, keys, words, **rooms)
    return words


@triton.jit
def _rising(x: tl.tensor) -> tl.tensor:
    """Maps fp32 to int32 in the same order; it is its own inverse, on bits."""
    return x ^ ((x >> 31) & 0x7FFFFFFF)


@launched_directly
@triton.jit(do_not_specialize=["top"])
def _tiles(
    logits: tl.tensor,
    stride: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    vocab: tl.tensor,
    top: tl.tensor,
    largests: tl.tensor,
    sums: tl.tensor,
    aboves: tl.tensor,
    keys: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    token, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    row = logits + tl.load(rows + token) * stride
    ids = part * TILE + tl.arange(0, TILE)
    x = tl.load(row + ids, mask=ids < vocab, other=0.0).to(tl.float32)
    token_logit = tl.load(row + tl.load(tokens + token)).to(tl.float32)
    finite = tl.abs(x) < float("inf")
    not_finite = tl.max((~finite).to(tl.int32), 0) > 0
    x = tl.where(finite & (ids < vocab), x, NO_LOGIT)
    largest = tl.max(x, 0)
    offset = token * parts + part
    tl.store(largests + offset, largest)
    tl.store(sums + offset, tl.sum(tl.exp(x - largest), 0))
    tl.store(aboves + offset, tl.where(not_finite, -1, tl.sum((x > token_logit).to(tl.int32), 0)))
    rising = _rising(tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True))  # -0 is 0
    key = (rising.to(tl.int64) << 32) + (0x7FFFFFFF - ids).to(tl.int64)
    for rank in range(top):
        best = tl.max(key, 0)
        tl.store(keys + (token * MAX_TOP + rank) * parts + part, best)
        key = tl.where(key == best, NO_KEY, key)


@triton.jit
def _bits(x: tl.tensor, largest: tl.tensor, log_sum: tl.tensor) -> tl.tensor:
    logprob = x.to(tl.float64) - largest.to(tl.float64) - log_sum
    return tl.maximum(logprob, LEAST_LOGPROB).to(tl.float32).to(tl.int32, bitcast=True)


@launched_directly
@triton.jit(do_not_specialize=["top", "parts"])
def _join(
    logits: tl.tensor,
    stride: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    top: tl.tensor,
    parts: tl.tensor,
    largests: tl.tensor,
    sums: tl.tensor,
    aboves: tl.tensor,
    keys: tl.tensor,
    words: tl.tensor,
    PARTS: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    token, part, index = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS), tl.arange(0, KEYS)
    offset, valid = token * parts + part, part < parts
    tops = tl.load(largests + offset, mask=valid, other=NO_LOGIT)
    largest = tl.max(tops, 0)
    shares = tl.load(sums + offset, mask=valid, other=0.0) * tl.exp(tops - largest)
    log_sum = tl.log(tl.sum(shares, 0).to(tl.float64))
    token_logit = tl.load(logits + tl.load(rows + token) * stride + tl.load(tokens + token)).to(tl.float32)
    words += token * (2 + 2 * top)
    above = tl.load(aboves + offset, mask=valid, other=0)
    not_finite = tl.min(above, 0) < 0
    tl.store(words, tl.where(not_finite, NAN_BITS, _bits(tl.where(not_finite, 0.0, token_logit), largest, log_sum)))
    tl.store(words + 1, tl.sum(above, 0) + 1)
    key = tl.load(keys + token * MAX_TOP * parts + index, mask=index < top * parts, other=NO_KEY)
    for rank in range(top):
        best = tl.max(key, 0)
        value = _rising((best >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
        tl.store(words + 2 + rank, (0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.int32))
        tl.store(words + 2 + top + rank, _bits(value, largest, log_sum))
        key = tl.where(key == best, NO_KEY, key)


def reference(logits: Tensor, rows: Tensor, tokens: Tensor, top: int) -> Tensor:
    """Computes the same with torch operators: a stable sort leaves equal logits in the order of their ids."""
    x, columns = logits[rows].float(), tokens[:, None]
    ordered = (x + 0.0).sort(dim=-1, descending=True, stable=True)
    values = torch.cat((x.gather(1, columns), ordered.values[:, :top]), 1).double()
    logprobs = (values - x.double().logsumexp(-1, keepdim=True)).clamp(min=LEAST_LOGPROB.value)
    ranks = (x > x.gather(1, columns)).sum(-1, keepdim=True) + 1
    bits = logprobs.float().view(torch.int32)
    return torch.cat((bits[:, :1], ranks.int(), ordered.indices[:, :top].int(), bits[:, 1:]), 1)
