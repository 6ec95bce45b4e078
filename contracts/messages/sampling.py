"""Defines how tokens are drawn and when a sequence ends: what a request fixes for its samples on every worker."""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from contracts.ids import Count
from contracts.scores import MAX_TOP_LOGPROBS

Finish = Literal["stop", "length"]
Samples = Annotated[tuple[Count, ...], Meta(max_length=1024)]

TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
TokenIds = tuple[TokenId, ...]
TokenBiases = tuple[tuple[TokenId, Annotated[float, Meta(ge=-1e6, le=1e6)]], ...]
Top = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]

MIN_TEMPERATURE = 2.0**-29
"""The least temperature above 0, about 2e-9; lower ones are 0. All samplers compute logits / temperature in fp32.

There, a largest logit of 1 or more leads every lower one by 2^-24 at least, so at this temperature by 32, which no
noise can bridge: it spans less than 26, from -2.8 to 22.5. Below, then, a draw is the largest logit.
From here on the quotient is finite for all logits below `LARGEST_LOGIT`.
"""
LARGEST_LOGIT = 2.0**128 * MIN_TEMPERATURE


class Sampling(Struct, frozen=True, array_like=True):
    """Says how the next token is drawn. Randomness is keyed by (seed, sample, output index), so it survives a move."""

    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    temperature: Annotated[float, Meta(ge=0, le=1e6)] = 1.0  # 0 is greedy
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_k: Count = 0  # 0 is off
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=1e6)] = 1.0  # of tokens in prompt and output; 1 is off
    presence_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0  # of tokens in the output
    frequency_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0  # of each time that a token is in the output
    logit_bias: TokenBiases = ()
    allowed_token_ids: TokenIds | None = None  # no others are drawn; None: all
    bad_words: tuple[TokenIds, ...] = ()  # token sequences of which none may come to be in the output
    grammar: str = ""  # in Lark, as llguidance reads it: what the output has to be; empty: anything
    logprobs: Top | None = None  # alternatives that are told of each output token; None: not even its own probability
    prompt_logprobs: Top | None = None  # the same of the prompt's tokens, but for the first

    @property
    def looks_back(self) -> bool:
        """Tells whether a draw depends on the tokens before it, and not only on their KV."""
        penalties = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return penalties or bool(self.bad_words or self.grammar)

    def __post_init__(self) -> None:
        """Sets a temperature below `MIN_TEMPERATURE` to 0, so that all samplers agree on where greedy begins."""
        if self.temperature < MIN_TEMPERATURE:
            force_setattr(self, "temperature", 0.0)


class Limits(Struct, frozen=True, array_like=True):
    """Says when a sequence ends: the request's original limits, whatever attempt this is."""

    max_tokens: Count  # output tokens, over all attempts
    stop_token_ids: tuple[int, ...] = ()  # the end-of-text tokens, unless they are ignored, and the client's
    min_tokens: Count = 0  # output tokens before which none of those is drawn
