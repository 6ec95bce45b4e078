"""Applies temperature and filters to logits, as for the draw."""

from collections.abc import Sequence

import numpy as np
from msgspec import structs
from torch import Tensor

from contracts.messages.sampling import Sampling
from engine.backends.adjuster import FORBIDDEN_LOGIT
from engine.backends.reference.sampling.sampler import floor_of
from engine.device import to_device


def processed(logits: Tensor, samplings: Sequence[Sampling], tokens: Tensor) -> Tensor:
    """Returns fp32 `[rows, vocab]` of `logits` `[rows, vocab]`, which stay unchanged, with PyTorch on any device.

    Rows of temperature 0 are not changed. `tokens` `[rows]` were drawn from the rows, so they are never filtered out:
    sums that decide a threshold may differ in their last bits from the sampler's.
    """
    temperatures = np.array([each.temperature or 1.0 for each in samplings], dtype=np.float32)
    scaled = logits.float() / to_device(temperatures, logits.device)[:, None]
    plain = [each if each.temperature else structs.replace(each, top_k=0, top_p=1.0, min_p=0.0) for each in samplings]
    floor = floor_of(scaled, plain)
    if floor is None:
        return scaled
    own = scaled.gather(1, tokens[:, None])
    return scaled.masked_fill_(scaled < floor[:, None], FORBIDDEN_LOGIT).scatter_(1, tokens[:, None], own)
