"""Finds the threshold of a sample's filters among scaled logits: top_k, then top_p of the remaining tokens, then min_p.

    kth   = the k-th largest score
    whole = mass of the k largest;  mass of a set = sum of exp(score - largest)
    floor = max(kth, smallest score with less than top_p * whole of mass above it, largest + log min_p)

Nothing is sorted. Logits map to unsigned integers in their order (Herf, "Radix tricks", 2001), and a threshold is found
four bits at a time, from the highest: a radix selection (Alabi et al., "Fast k-selection algorithms for graphics
processing units", 2012). A round sums counts or masses for each of the 16 next digits, with one atomic addition for
each part of a row; the next round continues with the digit in which the limit is reached. 16-bit logits take four
rounds, fp32 logits eight: first counting for top_k, then weighing for top_p, whose limit depends on the k-th largest. A
round is a launch, in which a sample that does not need it returns at once.

At boundaries, equal scores pass together. Counts are exact. The difference of a score and the largest is rounded to
fp32, its exponential is fp64, and is rounded to a multiple of 2^-44, so that masses are whole numbers: sums do not
depend on their order, and a threshold depends only on its row and its sample, whatever the batch, the parts and the
launch. If a limit is met exactly (by ties for the largest beside negligible masses), masses are exact too. Otherwise a
mass is within 2^-45 per logit, at most 2^-27 of the whole, of the exact mass: only a limit that is so close to a mass
can give another threshold than sums in fp64.

Logits are searched, not scores. Division by the temperature keeps their order, so the threshold is the quotient of the
logit that was found, even if rounding makes two scores equal.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.sampling.sample_settings import SampleSettings, part_of_row
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"TILE": 512}, warps=4),
    Config({"TILE": 256}, warps=4),
    Config({"TILE": 512}, warps=8),
    Config({"TILE": 1024}, warps=8),
)
"""The first is the default. A round holds 16 numbers for each element of a tile."""

MAX_PARTS = 128
"""Parts of a row: one load finds the largest logit of all of them."""

MAX_VOCAB = 1 << 18
"""With shares of at most 2^44, a sum stays within 63 bits."""

DIGIT_BITS: tl.constexpr = tl.constexpr(4)
DIGIT_VALUES: tl.constexpr = tl.constexpr(16)
SHARE_UNITS: tl.constexpr = tl.constexpr(float(1 << 44))
LARGEST_FP32: tl.constexpr = tl.constexpr(torch.finfo(torch.float32).max)
PARTS_TILE: tl.constexpr = tl.constexpr(MAX_PARTS)


def score_floor(logits: Tensor, settings: SampleSettings, *, parts: int, config: Config | None = None) -> Tensor:
    """Finds the threshold of each sample: scaled logits of at least the threshold pass its filters.

    Args:
        logits: `[rows, vocab]` fp32, bf16 or fp16; rows may be strided.
        settings: how each sample is drawn, and from which row.
        parts: programs that share a row, at most `MAX_PARTS`.

    Returns `[samples]` fp32; -infinity for greedy samples and for samples without a filter.

    Example: the 50 largest of each of two rows: logits `[2, 128256]`, parts 126, settings with rows `[0, 1]`,
    temperature `[0.7, 0.7]`, top_k `[50, 50]`, top_p `[1, 1]`, min_p_reach `[-inf, -inf]`.
    """
    rows, temperature, top_k, top_p, min_p_reach = settings
    samples, vocab, device = len(rows), logits.shape[1], logits.device
    assert logits.stride(1) == 1 and vocab <= MAX_VOCAB and parts <= MAX_PARTS
    config = config or tuned("score_floor", str(logits.dtype).removeprefix("torch."), device, CANDIDATE_CONFIGS[0])
    shifts = range(0, 8 * logits.element_size(), DIGIT_BITS.value)[::-1]
    tops = torch.empty((samples, parts), dtype=torch.float32, device=device)
    floors = torch.empty(samples, dtype=torch.float32, device=device)
    # The sums of each round, by digit; its initial state: the digits before, and the sum over larger logits.
    sums = torch.empty((2, len(shifts), samples, DIGIT_VALUES.value), dtype=torch.int64, device=device)
    states = torch.empty((2, len(shifts), samples, 2), dtype=torch.int64, device=device)
    counts, masses = sums.unbind(0)
    counted, weighed = states.unbind(0)
    row = (logits, logits.stride(0), vocab, rows, temperature, top_k)
    # The results of top_k's last round and top_p's first round, and the largest logits.
    found = (counted[-1], counts[-1], masses[0], tops)
    grid, options = (samples, parts), config.options()
    _tops[grid](*row, top_p, min_p_reach, tops, sums, ROUNDS=2 * len(shifts), **options)
    for index, shift in enumerate(shifts):
        last = max(index - 1, 0)
        told = (counted[last], counts[last], counted[index], counts[index])
        _count[grid](*row, *told, shift, FIRST=index == 0, **options)
    for index, shift in enumerate(shifts):
        last = max(index - 1, 0)
        told = (weighed[last], masses[last], weighed[index], masses[index])
        _weigh[grid](*row, top_p, *found, *told, shift, FIRST=index == 0, **options)
    _floors[(samples,)](logits, parts, *settings[1:], *found, weighed[-1], masses[-1], floors)
    return floors


@triton.jit
def _order(logits: tl.tensor) -> tl.tensor:
    """Maps logits to uint32 in the same order, above 0 for all that are finite, below 2^16 for formats of 16 bits."""
    if logits.dtype.primitive_bitwidth == 16:
        half = logits.to(tl.uint16, bitcast=True).to(tl.uint32)
        return tl.where(half >= 0x8000, 0xFFFF - half, half + 0x8000)
    else:
        bits = logits.to(tl.uint32, bitcast=True)
        return tl.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000)


@triton.jit
def _logit(order: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Returns the fp32 logit for a result of `_order`; its inverse."""
    if FORMAT.primitive_bitwidth == 16:
        half = tl.where(order >= 0x8000, order - 0x8000, 0xFFFF - order)
        return half.to(tl.uint16).to(FORMAT, bitcast=True).to(tl.float32)
    else:
        bits = tl.where(order >= 0x80000000, order - 0x80000000, 0xFFFFFFFF - order)
        return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _share(logits: tl.tensor, temperature: tl.tensor, top: tl.tensor) -> tl.tensor:
    """Computes exp(score - largest score) in whole units; any number in a row that is not finite."""
    behind = tl.div_rn(logits, temperature) - top
    behind = tl.where(behind < 0, behind, 0.0)
    return (tl.exp(behind.to(tl.float64)) * SHARE_UNITS + 0.5).to(tl.int64)


@triton.jit
def _top(tops: tl.tensor, temperature: tl.tensor, parts: tl.tensor, sample: tl.tensor) -> tl.tensor:
    part = tl.arange(0, PARTS_TILE)
    found = tl.load(tops + sample * parts + part, mask=part < parts, other=-float("inf"))
    top = tl.div_rn(tl.max(found, 0), temperature)
    return tl.maximum(tl.minimum(top, LARGEST_FP32), -LARGEST_FP32)


@triton.jit
def _next(states: tl.tensor, sums: tl.tensor, limit: tl.tensor, shift: tl.tensor, sample: tl.tensor) -> tl.tensor:
    """Finds the next digit, the smallest with a sum of larger digits below the limit; returns (order, that sum)."""
    order = tl.load(states + sample * 2)
    above = tl.load(states + sample * 2 + 1)
    digit_sums = tl.load(sums + sample * DIGIT_VALUES + tl.arange(0, DIGIT_VALUES))
    larger = above + tl.sum(digit_sums, 0) - tl.cumsum(digit_sums, 0)
    passes = larger.to(tl.float64) < limit
    digit = DIGIT_VALUES - tl.sum(passes.to(tl.int64), 0)
    return order + (digit << shift), tl.max(tl.where(passes, larger, above), 0)


@triton.jit
def _keep(states: tl.tensor, order: tl.tensor, above: tl.tensor, sample: tl.tensor) -> None:
    if tl.program_id(1) == 0:
        tl.store(states + sample * 2, order)
        tl.store(states + sample * 2 + 1, above)


@triton.jit
def _has_top_k(temperature: tl.tensor, top_k: tl.tensor) -> tl.tensor:
    return (temperature > 0) & (top_k > 0)


@triton.jit
def _has_top_p(temperature: tl.tensor, top_p: tl.tensor) -> tl.tensor:
    return (temperature > 0) & (top_p < 1)


@triton.jit
def _mass_limit(
    order: tl.tensor,  # of the k-th largest logit; 0: all pass
    above: tl.tensor,  # how many logits are larger
    top_k: tl.tensor,
    top_p: tl.tensor,
    temperature: tl.tensor,
    top: tl.tensor,
    mass_sums: tl.tensor,  # of the first round: of all logits above the k-th largest
    sample: tl.tensor,
    FORMAT: tl.constexpr,
) -> tl.tensor:
    """Computes top_p of the mass that top_k left, in which equal scores count until there are k; at least one unit."""
    whole = tl.sum(tl.load(mass_sums + sample * DIGIT_VALUES + tl.arange(0, DIGIT_VALUES)), 0)
    if order > 0:
        whole += (top_k - above) * _share(_logit(order, FORMAT), temperature, top)
    return tl.maximum(top_p.to(tl.float64) * whole.to(tl.float64), 1.0)


@launched_directly
@triton.jit
def _tops(
    logits: tl.tensor,
    stride: tl.tensor,
    vocab: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    reaches: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    ROUNDS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    sample, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    temperature = tl.load(temperatures + sample)
    filtered = _has_top_k(temperature, tl.load(top_ks + sample))
    filtered = filtered | _has_top_p(temperature, tl.load(top_ps + sample))
    filtered = filtered | ((temperature > 0) & (tl.load(reaches + sample) > -float("inf")))
    if filtered:
        row, first, end = part_of_row(logits, stride, vocab, rows, sample)
        top = tl.full([TILE], -float("inf"), tl.float32)
        for begin in range(first, end, TILE):
            ids = begin + tl.arange(0, TILE)
            x = tl.load(row + ids, mask=ids < end, other=0.0).to(tl.float32)
            top = tl.where(ids < end, tl.maximum(top, x), top)
        tl.store(tops + sample * parts + part, tl.max(top, 0))
        if part == 0:
            for index in range(ROUNDS):
                cleared = sums + (index * tl.num_programs(0) + sample) * DIGIT_VALUES
                tl.store(cleared + tl.arange(0, DIGIT_VALUES), tl.zeros([DIGIT_VALUES], tl.int64))


@triton.jit
def _digits(logits: tl.tensor, valid: tl.tensor, order: tl.tensor, shift: tl.tensor) -> tl.tensor:
    """Returns, in int32, the digit at `shift` of logits with the higher digits of `order`; DIGITS for other logits."""
    found = (_order(logits) ^ order.to(tl.uint32)) >> shift
    return tl.where(valid & (found < DIGIT_VALUES), found, DIGIT_VALUES).to(tl.int32)


@triton.jit
def _counts(digits: tl.tensor) -> tl.tensor:
    equal = digits[:, None] == tl.arange(0, DIGIT_VALUES)[None, :]
    return tl.sum(equal.to(tl.int32), 0)


@triton.jit
def _masses(digits: tl.tensor, shares: tl.tensor) -> tl.tensor:
    """Sums the shares of each digit, int64 `[DIGITS]`.

    Digit and share travel between threads as one number. Otherwise the compiler has them exchange the exponential's
    argument, and each exponential is computed by the threads of all 16 sums.
    """
    packed = shares * 32 + digits.to(tl.int64)
    packed = packed[:, None]
    equal = (packed & 31) == tl.arange(0, DIGIT_VALUES)[None, :]
    return tl.sum(tl.where(equal, packed >> 5, 0), 0)


@triton.jit
def _add(sums: tl.tensor, addends: tl.tensor, sample: tl.tensor) -> None:
    tl.atomic_add(sums + sample * DIGIT_VALUES + tl.arange(0, DIGIT_VALUES), addends, mask=addends > 0, sem="relaxed")


@launched_directly
@triton.jit(do_not_specialize=["shift"])
def _count(
    logits: tl.tensor,
    stride: tl.tensor,
    vocab: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    states_before: tl.tensor,
    sums_before: tl.tensor,
    states: tl.tensor,
    sums: tl.tensor,
    shift: tl.tensor,
    FIRST: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    sample = tl.program_id(0).to(tl.int64)
    top_k = tl.load(top_ks + sample)
    if _has_top_k(tl.load(temperatures + sample), top_k):
        order, above = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
        if not FIRST:
            order, above = _next(states_before, sums_before, top_k, shift + DIGIT_BITS, sample)
        _keep(states, order, above, sample)
        row, first, end = part_of_row(logits, stride, vocab, rows, sample)
        counts = tl.zeros([DIGIT_VALUES], tl.int32)
        for begin in range(first, end, TILE):
            ids = begin + tl.arange(0, TILE)
            x = tl.load(row + ids, mask=ids < end, other=0.0)
            digits = _digits(x, ids < end, order, shift)
            if tl.min(digits, 0) < DIGIT_VALUES:
                counts += _counts(digits)
        _add(sums, counts.to(tl.int64), sample)


@launched_directly
@triton.jit(do_not_specialize=["shift"])
def _weigh(
    logits: tl.tensor,
    stride: tl.tensor,
    vocab: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    last_counted: tl.tensor,
    last_counts: tl.tensor,
    first_masses: tl.tensor,
    tops: tl.tensor,
    states_before: tl.tensor,
    sums_before: tl.tensor,
    states: tl.tensor,
    sums: tl.tensor,
    shift: tl.tensor,
    FIRST: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    sample, parts = tl.program_id(0).to(tl.int64), tl.num_programs(1)
    temperature, top_p = tl.load(temperatures + sample), tl.load(top_ps + sample)
    if _has_top_p(temperature, top_p):
        top_k = tl.load(top_ks + sample)
        top = _top(tops, temperature, parts, sample)
        order, above = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
        kth, larger = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
        if _has_top_k(temperature, top_k):
            kth, larger = _next(last_counted, last_counts, top_k, 0, sample)
        if not FIRST:
            limit = _mass_limit(
                kth, larger, top_k, top_p, temperature, top, first_masses, sample, logits.dtype.element_ty
            )
            order, above = _next(states_before, sums_before, limit, shift + DIGIT_BITS, sample)
        _keep(states, order, above, sample)
        row, first, end = part_of_row(logits, stride, vocab, rows, sample)
        masses = tl.zeros([DIGIT_VALUES], tl.int64)
        for begin in range(first, end, TILE):
            ids = begin + tl.arange(0, TILE)
            x = tl.load(row + ids, mask=ids < end, other=0.0)
            digits = _digits(x, (ids < end) & (_order(x) > kth.to(tl.uint32)), order, shift)
            if tl.min(digits, 0) < DIGIT_VALUES:
                masses += _masses(digits, _share(x.to(tl.float32), temperature, top))
        _add(sums, masses, sample)


@launched_directly
@triton.jit(do_not_specialize=["parts"])
def _floors(
    logits: tl.tensor,
    parts: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    reaches: tl.tensor,
    last_counted: tl.tensor,
    last_counts: tl.tensor,
    first_masses: tl.tensor,
    tops: tl.tensor,
    last_weighed: tl.tensor,
    last_masses: tl.tensor,
    floors: tl.tensor,
) -> None:
    sample = tl.program_id(0).to(tl.int64)
    temperature, reach = tl.load(temperatures + sample), tl.load(reaches + sample)
    top_k, top_p = tl.load(top_ks + sample), tl.load(top_ps + sample)
    floor = tl.full([], -float("inf"), tl.float32)
    kth, larger = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
    if _has_top_k(temperature, top_k):
        kth, larger = _next(last_counted, last_counts, top_k, 0, sample)
    cut = kth
    if _has_top_p(temperature, top_p):
        top = _top(tops, temperature, parts, sample)
        limit = _mass_limit(kth, larger, top_k, top_p, temperature, top, first_masses, sample, logits.dtype.element_ty)
        order, _above = _next(last_weighed, last_masses, limit, 0, sample)
        cut = tl.maximum(cut, order)
    if cut > 0:
        floor = tl.div_rn(_logit(cut, logits.dtype.element_ty), temperature)
    if (temperature > 0) & (reach > -float("inf")):
        floor = tl.maximum(floor, _top(tops, temperature, parts, sample) + reach)
    tl.store(floors + sample, floor)


def reference(logits: Tensor, settings: SampleSettings) -> Tensor:
    """Computes the same by a whole sort; the least score of all where no filter leaves anything out."""
    rows, temperature, top_k, top_p, min_p_reach = settings
    vocab = logits.shape[1]
    scores = logits[rows].float() / torch.where(temperature > 0, temperature, 1.0)[:, None]
    ordered = scores.sort(descending=True).values
    ranks = torch.arange(vocab, device=logits.device)
    valid = ranks < torch.where((top_k > 0) & (top_k < vocab), top_k, vocab)[:, None]
    shares = (ordered - ordered[:, :1]).double().exp().masked_fill(~valid, 0.0)
    before = shares.cumsum(-1) - shares
    valid &= (before < (top_p.double() * shares.sum(-1))[:, None]) | (top_p >= 1)[:, None] | (ranks == 0)
    cut = ordered.gather(1, valid.sum(-1, keepdim=True) - 1).squeeze(1)
    floor = torch.maximum(cut, ordered[:, 0] + min_p_reach)
    return torch.where(temperature > 0, floor, -torch.inf)
