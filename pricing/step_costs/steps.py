"""Cost of a worker's steps: a linear model of the work in a step. `fit.py` learns its coefficients from measured steps.

    seconds = step + prompt_token·n + pair·p + sequence·s + context_token·c + row·d + rows·[d > 0]

n tokens of prompts; p pairs of such a token and a token that it attends to (the quadratic part of attention);
s decoding sequences; c tokens whose KV these read; d rows of draft tokens that the step verifies.
"""

from math import ceil
from typing import NamedTuple

from msgspec import Struct

MIN_CHUNK_TOKENS = 16  # least tokens of prompts in a step with decodes


class StepWork(Struct, frozen=True):
    """Work of one step, in the figures that its time depends on."""

    prompt_tokens: int = 0
    pairs: float = 0.0  # pairs of such a token and a token that it attends to, itself included
    sequences: int = 0  # decoding sequences
    context: int = 0  # tokens whose KV these read
    rows: int = 0  # rows of draft tokens, beyond one row of each decoding sequence


def pairs_of(start: int, tokens: int) -> float:
    """Counts the pairs of a token and a token that it attends to, for `tokens` tokens behind `start` others."""
    return tokens * (start + (tokens + 1) / 2)


class DecodeYield(NamedTuple):
    """Average yield of a sequence's decode step; without draft tokens one token, and no further rows."""

    tokens: float = 1.0
    rows: float = 0.0  # rows of draft tokens, accepted or not


class StepCosts(Struct, frozen=True):
    """Coefficients of the model, in seconds, as a worker has fitted them; without `prompt_token` they are unknown."""

    step: float = 0.0  # any step
    prompt_token: float = 0.0
    pair: float = 0.0
    sequence: float = 0.0
    context_token: float = 0.0
    row: float = 0.0  # row of draft tokens
    rows: float = 0.0  # any step with such a row
    error: float = 0.0  # median of |predicted - measured| / measured over the newest steps
    steps: int = 0  # number of steps learned from
    most_tokens: int = 0  # token budget of a step; 0: unbounded
    shorter: float = 0.0  # share of each step that a long prompt leaves to shorter prompts
    target: float = 0.0  # s that a step with decodes should take, which bounds its chunks of prompts; 0: unbounded
    told_apart: bool = False  # a start has measured the coefficients one by one, so their ratios are known
    fastest: float = 0.0  # s per token of a sequence in the fastest decode step so far; 0: none has run

    @property
    def known(self) -> bool:
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
        """Predicts the seconds per token of these sequences: a step with its draft tokens, divided by its yield."""
        seconds = self.decode_seconds(sequences, context)
        if guessing.rows:
            seconds += self.row * guessing.rows * sequences + self.rows
        return seconds / guessing.tokens

    def chunk(self, sequences: int, context: int, pairs_each: float = 0.0) -> int:
        """Returns how many tokens of prompts fit into a step with these decodes; each token has `pairs_each` pairs."""
        most = self.most_tokens or 1 << 30
        if not sequences or not self.target:
            return most
        token = self.prompt_token + self.pair * pairs_each
        left = max(0.0, self.target - self.decode_seconds(sequences, context))
        return min(most, max(MIN_CHUNK_TOKENS, int(min(left / token, most)))) if token else most

    def prompt_seconds(self, tokens: int, pairs: float, sequences: int = 0, context: int = 0) -> float:
        """Predicts the seconds to compute `tokens` tokens of prompts beside these decodes, in one step or more."""
        if tokens <= 0:
            return 0.0
        steps = ceil(tokens / self.chunk(sequences, context, pairs / tokens))
        return steps * self.decode_seconds(sequences, context) + self.prompt_token * tokens + self.pair * pairs
