"""Seed of the step costs: estimates from the few steps that a start measures, before the first request."""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from pricing.step_costs.steps import StepCosts

MIN_SHARE = 0.1  # least share of the shortest measured step that is fixed, and of the longest that its tokens take


class MeasuredStep(NamedTuple):
    """Measured step of prompts."""

    tokens: int
    seconds: float


def seeded(
    measured: Sequence[MeasuredStep], parameters: int, weights_bytes: int, token_bytes: int, layers: int
) -> StepCosts:
    """Estimates step costs from measured steps of prompts; without any they are unknown.

    A line through the shortest and the longest step gives `step` and `prompt_token`. A decoded token, and a row of a
    draft token, cost as much as a token of a prompt. A pair costs 4·layers·width / (2·parameters) of a token, the
    ratio of their operations, where parameters = 12·layers·width² (Kaplan et al., 2020). KV, `token_bytes` per token of
    the context, is read as fast as the weights in a step that does little else.
    """
    if not measured:
        return StepCosts()
    short, long = min(measured), max(measured)
    token = MIN_SHARE * long.seconds / long.tokens
    if long.tokens > short.tokens:
        token = max(token, (long.seconds - short.seconds) / (long.tokens - short.tokens))
    step = max(MIN_SHARE * short.seconds, short.seconds - token * short.tokens)
    width = sqrt(parameters / (12 * layers))
    return StepCosts(
        step=step,
        prompt_token=token,
        pair=token * 2 * layers * width / parameters,
        sequence=token,
        context_token=step * token_bytes / weights_bytes,
        row=token,
    )
