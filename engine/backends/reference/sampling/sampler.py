"""Draws tokens with PyTorch operators, on any device: the reference."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from contracts.messages.sampling import Sampling
from engine.backends.gumbel import gumbel_noise
from engine.backends.sampler import Draw, is_cut, keys_of, min_p_reach
from engine.device import to_device

CANDIDATE_TOKENS = 1024
"""Number of largest scores checked by top_p before it sorts the whole vocabulary."""


class ReferenceSampler:
    def sample(self, logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
        logits = logits.float()
        finite = torch.isfinite(logits.sum(-1))  # one pass; infinities and NaN survive a sum
        tokens = logits.argmax(-1)
        owners = [row for row, draw in enumerate(draws) for _ in draw.samples]
        if len(owners) != len(draws):
            index = _on_device(owners, np.int64, logits.device)
            tokens, finite = tokens[index], finite[index]
        random = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0]
        if random:
            drawn = _drawn(logits[_on_device(random, np.int64, logits.device)], [draws[row] for row in random])
            places = [place for place, row in enumerate(owners) if draws[row].sampling.temperature > 0]
            tokens[_on_device(places, np.int64, logits.device)] = drawn
        return tokens.masked_fill_(~finite, 0), finite


def _on_device(values: Sequence[float], kind: type[np.generic], device: torch.device) -> Tensor:
    return to_device(np.array(values, dtype=kind), device)


def _drawn(logits: Tensor, draws: list[Draw]) -> Tensor:
    device = logits.device
    settings = [draw.sampling for draw in draws]
    keys = to_device(keys_of(draws), device)
    logits /= _on_device([each.temperature for each in settings], np.float32, device)[:, None]
    floor = floor_of(logits, settings)
    if floor is not None:
        logits.masked_fill_(logits < floor[:, None], -torch.inf)
    scores = gumbel_noise(keys, logits.shape[1])
    if len(keys) == len(draws):
        scores += logits
    else:
        scores += logits[_on_device([row for row, draw in enumerate(draws) for _ in draw.samples], np.int64, device)]
    return scores.argmax(-1)


def floor_of(logits: Tensor, settings: list[Sampling]) -> Tensor | None:
    """Finds the least scaled logit that each row's filters leave, `[rows]`, or None where no row has a filter.

    `logits` `[rows, vocab]` are scaled: divided by the temperatures.
    """
    vocab = logits.shape[1]
    cuts = [row for row, each in enumerate(settings) if is_cut(each, vocab)]
    if not cuts and all(each.min_p <= 0 for each in settings):
        return None
    floor = logits.amax(-1) + _on_device([min_p_reach(each) for each in settings], np.float32, logits.device)
    if cuts:
        rows = _on_device(cuts, np.int64, logits.device)
        found = _sorted_floor(logits[rows], [settings[row] for row in cuts])
        floor[rows] = torch.maximum(floor[rows], found)
    return floor


def _sorted_floor(logits: Tensor, settings: list[Sampling]) -> Tensor:
    """Finds the threshold of top_k and top_p, `[rows]`: the largest scores mostly decide it; else all are sorted.

    On CUDA a whole sort is cheap, and asking whether it is needed would wait for the device.
    """
    vocab = logits.shape[1]
    kept = [each.top_k if 0 < each.top_k < vocab else vocab for each in settings]
    top_k = _on_device(kept, np.int64, logits.device)
    top_p = _on_device([each.top_p for each in settings], np.float64, logits.device)
    if logits.is_cuda or vocab <= CANDIDATE_TOKENS:
        return _cut(logits, vocab, top_k, top_p)[0]
    floor, decided = _cut(logits, CANDIDATE_TOKENS, top_k, top_p)
    rest = (~decided).nonzero().squeeze(1)
    if rest.numel():
        floor[rest] = _cut(logits[rest], vocab, top_k[rest], top_p[rest])[0]
    return floor


def _cut(logits: Tensor, count: int, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the last score, in falling order, before which less than top_p is gathered; and whether `count` tell it.

    Sums are fp64, so that their order, which depends on how many rows there are, cannot move a threshold.
    """
    ordered = logits.topk(count).values if count < logits.shape[1] else logits.sort(descending=True).values
    ranks = torch.arange(count, device=logits.device)
    masses = (ordered - ordered[:, :1]).double().exp_().masked_fill_(ranks >= top_k[:, None], 0)
    total = torch.where(top_k <= count, masses.sum(-1), (logits - ordered[:, :1]).double().exp_().sum(-1))
    before = (masses.cumsum(-1) - masses) / total[:, None]
    kept = (before < top_p[:, None]) & (ranks < top_k[:, None])
    kept[:, 0] = True
    last = kept.sum(-1) - 1
    decided = (last + 1 < count) | (top_k <= count)
    return ordered.gather(1, last[:, None]).squeeze(1), decided
