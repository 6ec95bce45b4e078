"""Logit changes of a sampling, prepared once for all steps of its sequence."""

import numpy as np
from numpy.typing import NDArray

from contracts.messages.sampling import Sampling
from engine.backends.adjusting.bad_words import BadWords

TOKENS_PER_WORD = 32
"""Number of tokens with bits in one mask word."""


class LogitChanges:
    """Logit changes of a sampling for one vocabulary. Ids outside of the vocabulary are ignored."""

    def __init__(self, sampling: Sampling, vocab: int) -> None:
        self.sampling = sampling
        biases: dict[int, float] = {}
        for token, bias in sampling.logit_bias:
            if token < vocab:
                biases[token] = biases.get(token, 0.0) + bias
        self.bias_ids: NDArray[np.int32] = np.array(list(biases), np.int32)
        self.biases: NDArray[np.float32] = np.array(list(biases.values()), np.float32)
        self.allowed: NDArray[np.int32] | None = None  # bits, as in `engine.constraints.Masks`
        if sampling.allowed_token_ids is not None:
            self.allowed = bits_of([token for token in sampling.allowed_token_ids if token < vocab], vocab)
        self.bad_words = BadWords(sampling.bad_words, vocab) if sampling.bad_words else None
        repeated = sampling.repetition_penalty != 1
        self.counts_prompt = repeated
        self.penalizes = repeated or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0


def bits_of(tokens: list[int], vocab: int) -> NDArray[np.int32]:
    """Packs token ids into words, `[ceil(vocab / 32)]`: their bits are set."""
    flags = np.zeros(-(-vocab // TOKENS_PER_WORD) * TOKENS_PER_WORD, np.uint8)
    flags[tokens] = 1
    return np.packbits(flags, bitorder="little").view("<i4").astype(np.int32)
