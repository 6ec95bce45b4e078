"""Guesses what steps cost from a start's few measured steps, before the first request: what a fit begins with."""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from pricing.steps import StepCosts

LEAST_SHARE = 0.1
"""A step costs at least this share of the shortest measured one, and a token this share of one of the longest."""


class MeasuredStep(NamedTuple):
    """Holds a measured step of prompts."""

    tokens: int
    seconds: float


def seeded(
    measured: Sequence[MeasuredStep], parameters: int, weights_bytes: int, token_bytes: int, layers: int
) -> StepCosts:
    """Returns what steps should cost, as far as steps of prompts tell; nothing, where none was measured.

    From the shortest and the longest it has what a token takes, and what a step takes whatever is in it. A token of a
    decode is one of a prompt, and so is a further row of one. A pair of tokens is to a token as their operations are,
    by the parameters of a usual transformer (12 x layers x width^2, Kaplan et al., 2020): 4 x layers x width beside 2 x
    parameters. KV is read as fast as the weights, `weights_bytes`, in a step that does little else: `token_bytes` of
    each token of the context.
    """
    if not measured:
        return StepCosts()
    short, long = min(measured), max(measured)
    token = LEAST_SHARE * long.seconds / long.tokens
    if long.tokens > short.tokens:
        token = max(token, (long.seconds - short.seconds) / (long.tokens - short.tokens))
    step = max(LEAST_SHARE * short.seconds, short.seconds - token * short.tokens)
    width = sqrt(parameters / (12 * layers))
    return StepCosts(
        step=step,
        prompt_token=token,
        pair=token * 2 * layers * width / parameters,
        sequence=token,
        context_token=step * token_bytes / weights_bytes,
        row=token,
    )
