"""How tokens are drawn from logits, and the interface of samplers.

A token is the largest logit, or a draw by the Gumbel-max trick: argmax(logits / temperature + Gumbel noise) is a draw
from softmax(logits / temperature), and needs neither a sum nor a sort. Filters are thresholds on the scaled logits, in
transformers' order: top_k, then top_p of the remaining tokens, then min_p. Scores equal to a threshold pass, so ties do
not depend on a sort's order. Of equal scores the lowest id is drawn. A temperature is 0 or at least
`contracts.messages.sampling.MIN_TEMPERATURE`, so that scores are finite.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from contracts.messages.sampling import Sampling
from engine.backends.gumbel import keys


class Draw(NamedTuple):
    """Sampling of one row: one draw for each of `samples`, which are independent."""

    sampling: Sampling
    samples: tuple[int, ...]
    output_index: int  # of the token in the sample's output


class Sampler(Protocol):
    """Draws the next tokens of each row."""

    def sample(self, logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
        """Returns tokens, and whether their rows were finite, int64 and bool `[samples]`, of `logits` `[rows, vocab]`.

        `draws` has one entry for each row; the samples of a row are neighbours. A row that is not finite gives token 0,
        without any effect on other rows. The logits stay unchanged.
        """
        ...


def is_cut(sampling: Sampling, vocab: int) -> bool:
    return 0 < sampling.top_k < vocab or sampling.top_p < 1


def min_p_reach(sampling: Sampling) -> float:
    """Returns min_p's threshold relative to the largest scaled logit: at most 0; -infinity if off."""
    return math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf


def keys_of(draws: Sequence[Draw]) -> NDArray[np.int32]:
    """Returns the words that key the noise of each sample, `[samples, 2]`."""
    counters = [(draw.sampling.seed, sample, draw.output_index) for draw in draws for sample in draw.samples]
    seeds, samples, output_indices = zip(*counters, strict=True)
    return keys(seeds, samples, output_indices)
