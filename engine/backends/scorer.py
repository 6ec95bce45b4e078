"""How log-probabilities and ranks are computed, and the interface of scorers.

Log-probabilities are log softmax, in fp32, of sums as precise as their terms. A token's rank is 1 more than the number
of tokens with a larger logit. Of equal logits the lower id comes first among the most likely, on every backend.

A scorer returns int32 words `[tokens, 2 + 2 x top]`, which are copied to the host as one tensor: for each token the
bits of its log-probability (fp32), its rank, the ids of the `top` most likely tokens of its row, and the bits of their
log-probabilities.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from contracts.scores import Scores

MIN_LOGPROB = -9999.0
"""Lowest log-probability in answers: OpenAI's clients know this value, and JSON has no infinity."""


class Scorer(Protocol):
    """Scores tokens by the logits that they were drawn from, or could have been."""

    def score(self, logits: Tensor, rows: Tensor | None, tokens: Tensor, top: int) -> Tensor:
        """Returns the words of each of `tokens`, int64 `[tokens]`, in its row of `logits` `[rows, vocab]`.

        `rows`, int64 `[tokens]`, are their rows; None: row i for token i. `top` is at most `vocab`. In a row that is
        not finite the log-probability is NaN and the rest is undefined; other rows are not affected. The logits stay
        unchanged, and the host does not wait for the device.
        """
        ...


def width(top: int) -> int:
    """Returns the words of one token."""
    return 2 + 2 * top


def scores_of(words: NDArray[np.int32], top: int) -> Scores:
    """Packs the words of some tokens, `[tokens, words]`, which may have more alternatives than `top`."""
    widest = (words.shape[1] - 2) // 2
    logprobs = words[:, 2 + widest : 2 + widest + top]
    return Scores(top, *(part.tobytes() for part in (words[:, 0], words[:, 1], words[:, 2 : 2 + top], logprobs)))


def finite(words: NDArray[np.int32]) -> bool:
    """Returns whether the log-probabilities of these tokens, `[tokens, words]`, are numbers."""
    return bool(np.isfinite(np.ascontiguousarray(words[:, 0]).view(np.float32)).all())
