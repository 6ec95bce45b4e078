"""Predicts what a worker's steps take, from what they compute: the coefficients that it has fitted, and what follows.

A step takes some seconds whatever it computes, some for each token of a prompt, some for each pair of such a token and
one that it attends to (the quadratic part of attention), some for each sequence that decodes, and some for each token
whose KV those read. That is what a step's operators do: products with the weights, which are read once, and attention.
A sequence that decodes may have further rows, for guesses that the step verifies: each costs something of its own, and
so does a step that has any, however few.
"""

from math import ceil
from typing import NamedTuple

from msgspec import Struct

MIN_CHUNK_TOKENS = 16
"""Tokens of prompts for which a step beside decodes always has room."""


class StepWork(Struct, frozen=True):
    """Says what a step computes, in the figures that its time depends on."""

    prompt_tokens: int = 0
    pairs: float = 0.0  # of one of these tokens and a token that it attends to, itself included
    sequences: int = 0  # that decode
    context: int = 0  # tokens whose KV those read
    rows: int = 0  # beyond one of each sequence that decodes


def pairs_of(start: int, tokens: int) -> float:
    """Counts the pairs of each of `tokens` tokens behind `start` others and a token that it attends to."""
    return tokens * (start + (tokens + 1) / 2)


class DecodeYield(NamedTuple):
    """Says what a sequence has of a step that verifies guesses, on average; without any, one token and no rows."""

    tokens: float = 1.0
    rows: float = 0.0  # beyond one, whose guesses came true or not


class StepCosts(Struct, frozen=True):
    """Holds what the parts of a worker's steps take, in seconds, as it has fitted them, and how well that predicts.

    Without `prompt_token` nothing is known.
    """

    step: float = 0.0  # of any step
    prompt_token: float = 0.0
    pair: float = 0.0
    sequence: float = 0.0  # that decodes
    context_token: float = 0.0
    row: float = 0.0  # beyond one of a sequence that decodes
    rows: float = 0.0  # of a step with any such row
    error: float = 0.0  # the median of |predicted - measured| / measured, of the newest steps
    steps: int = 0  # that were learned from
    most_tokens: int = 0  # of a step; 0: any number
    shorter: float = 0.0  # share of each step that a long prompt leaves to shorter ones
    target: float = 0.0  # seconds after which chunks of prompts beside decodes end a step; 0: none
    fastest: float = 0.0  # for each token of a sequence, of the fastest step with decodes that has run; 0: none has

    @property
    def known(self) -> bool:
        """Tells whether anything can be predicted."""
        return self.prompt_token > 0

    def seconds(self, work: StepWork) -> float:
        """Predicts the seconds of one step."""
        return (
            self.step
            + self.prompt_token * work.prompt_tokens
            + self.pair * work.pairs
            + self.sequence * work.sequences
            + self.context_token * work.context
            + self.row * work.rows
            + self.rows * (work.rows > 0)
        )

    def decode_seconds(self, sequences: int, context: int) -> float:
        """Predicts the seconds of a step in which `sequences` sequences decode, of `context` tokens together."""
        return self.step + self.sequence * sequences + self.context_token * context

    def token_seconds(self, sequences: int, context: int, guessing: DecodeYield) -> float:
        """Predicts the seconds for each token of those sequences: a step's, guesses and all, by what each has of it."""
        guesses = self.row * guessing.rows * sequences + self.rows * (guessing.rows > 0)
        return (self.decode_seconds(sequences, context) + guesses) / guessing.tokens

    def chunk(self, sequences: int, context: int, pairs_each: float = 0.0) -> int:
        """Returns how many tokens of prompts a step takes beside these decodes; each has `pairs_each` pairs."""
        most = self.most_tokens or 1 << 30
        if not sequences or not self.target:
            return most
        token = self.prompt_token + self.pair * pairs_each
        left = max(0.0, self.target - self.decode_seconds(sequences, context))
        return min(most, max(MIN_CHUNK_TOKENS, int(min(left / token, most)))) if token else most

    def prompt_seconds(self, tokens: int, pairs: float, sequences: int = 0, context: int = 0) -> float:
        """Predicts the seconds until `tokens` tokens of prompts are computed beside these decodes, one step or more."""
        if tokens <= 0:
            return 0.0
        steps = ceil(tokens / self.chunk(sequences, context, pairs / tokens))
        return steps * self.decode_seconds(sequences, context) + self.prompt_token * tokens + self.pair * pairs
