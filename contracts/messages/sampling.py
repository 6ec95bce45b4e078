"""A request's sampling parameters and limits, equal on every worker."""

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
"""The lowest temperature above 0, about 2e-9; lower ones mean 0. Samplers compute logits / temperature in fp32.

A largest logit of 1 or more exceeds every lower one by at least 2^-24, at this temperature by 32. Gumbel noise spans
less than 26, from -2.8 to 22.5, so below this temperature the largest logit is always drawn. From this temperature on,
the quotient is finite for all logits below `LARGEST_LOGIT`.
"""
LARGEST_LOGIT = 2.0**128 * MIN_TEMPERATURE


class Sampling(Struct, frozen=True, array_like=True):
    """Sampling parameters. Randomness is keyed by (seed, sample, output index), so it survives a move."""

    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    temperature: Annotated[float, Meta(ge=0, le=1e6)] = 1.0  # 0: greedy
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_k: Count = 0  # 0: off
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=1e6)] = 1.0  # of tokens in prompt and output; 1: off
    presence_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0  # of tokens in the output
    frequency_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0  # for each occurrence of a token in the output
    logit_bias: TokenBiases = ()
    allowed_token_ids: TokenIds | None = None  # None: all
    bad_words: tuple[TokenIds, ...] = ()  # token sequences that must not occur in the output
    grammar: str = ""  # in llguidance's Lark syntax, for the output; empty: none
    logprobs: Top | None = None  # reported alternatives of each output token; None: no log-probabilities
    prompt_logprobs: Top | None = None  # the same for the prompt's tokens except the first

    @property
    def looks_back(self) -> bool:
        """Whether a draw depends on earlier tokens, and not only on their KV."""
        penalties = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return penalties or bool(self.bad_words or self.grammar)

    def __post_init__(self) -> None:
        """Sets a temperature below `MIN_TEMPERATURE` to 0, so that all samplers agree on where greedy begins."""
        if self.temperature < MIN_TEMPERATURE:
            force_setattr(self, "temperature", 0.0)


class Limits(Struct, frozen=True, array_like=True):
    """When a sequence ends: the request's original limits, for any attempt."""

    max_tokens: Count  # of the output, over all attempts
    stop_token_ids: tuple[int, ...] = ()  # end-of-text tokens, unless ignored, and the client's stop tokens
    min_tokens: Count = 0  # output tokens before a stop token may be drawn
