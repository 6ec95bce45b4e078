"""Adjusts logits by PyTorch's operators, row by row, on any device: the reference."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.backends.adjuster import FORBIDDEN, is_adjusted
from engine.constraints import Masks
from engine.device import to_device
from engine.model.batch import Sampled, place_of_samples
from engine.plan import Work


class ReferenceAdjuster:
    """See `engine.backends.adjuster.Adjuster`."""

    def adjust(self, logits: Tensor, works: Sequence[Work], before: Sampled | None, masks: Masks | None) -> Tensor:
        logits = logits.float()
        masked = {row: place for place, row in enumerate(masks.rows)} if masks is not None else {}
        places = place_of_samples(before.works) if before is not None else {}
        for row, work in enumerate(works):
            if not is_adjusted(work) and row not in masked:
                continue
            bits = masks.bits[masked[row]] if masks is not None and row in masked else None
            pending = None
            if work.tokens is not None and work.output_index > len(work.tokens) - work.prompt_tokens:
                assert before is not None, "a pending token, but no step before it"
                pending = before.tokens[places[work.sequence]]
            logits[row] = _adjusted(logits[row], work, pending, bits)
        return logits


def _adjusted(x: Tensor, work: Work, pending: Tensor | None, bits: NDArray[np.int32] | None) -> Tensor:
    sampling, vocab, device = work.sampling, len(x), x.device
    assert sampling is not None
    given = x.clone()
    output = (work.tokens or [])[work.prompt_tokens :]
    if sampling.logit_bias:
        biases: dict[int, float] = {}
        for token, bias in sampling.logit_bias:
            biases[token] = biases.get(token, 0.0) + bias
        row = np.zeros(vocab, np.float32)
        for token, bias in biases.items():
            if token < vocab:
                row[token] = bias
        x = x + to_device(row, device)
    counted = np.zeros(vocab, np.float32)
    for token, count in Counter(output).items():
        counted[token] = count
    counts = to_device(counted, device)
    if pending is not None:
        counts = counts + (torch.arange(vocab, device=device) == pending)
    if sampling.repetition_penalty != 1:
        prompt = np.zeros(vocab, bool)
        prompt[(work.tokens or [])[: work.prompt_tokens]] = True
        seen = to_device(prompt, device) | (counts > 0)
        penalty = torch.full((), sampling.repetition_penalty, device=device)
        x = torch.where(seen, torch.where(x > 0, x / penalty, x * penalty), x)
    x = x - counts * sampling.frequency_penalty
    x = x - (counts > 0) * sampling.presence_penalty
    forbidden = np.zeros(vocab, bool)
    if sampling.allowed_token_ids is not None:
        forbidden[:] = True
        forbidden[[each for each in sampling.allowed_token_ids if each < vocab]] = False
    banned = [each for each in work.banned if each < vocab]
    if bits is not None:
        allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab].astype(bool)
        forbidden |= ~allowed
        if banned:
            allowed[banned] = False
            banned = banned if allowed.any() else []
    forbidden[banned] = True
    told = to_device(forbidden, device)
    for word in sampling.bad_words:
        *behind, last = word
        if last >= vocab:
            continue
        hit = torch.arange(vocab, device=device) == last
        if pending is not None and behind:
            hit = hit & (pending == behind.pop())
        if len(behind) <= len(output) and output[len(output) - len(behind) :] == behind:
            told = told | hit
    return torch.where(told & given.isfinite(), torch.full((), FORBIDDEN, device=device), x)
