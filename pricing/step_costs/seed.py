"""Seed of the step costs: estimates from the few steps that a start measures, before the first request."""

from collections.abc import Sequence
from math import sqrt
from typing import Literal, NamedTuple, get_args

from msgspec import structs

from pricing.step_costs.steps import StepCosts, StepWork

MIN_SHARE = 0.1
"""Least share of the shortest measured step that is fixed, of the longest that its tokens take, and of a coefficient's
estimate by bytes or operations that it is after its measurement."""


class MeasuredStep(NamedTuple):
    """Measured step of prompts."""

    tokens: int
    seconds: float


class TimedStep(NamedTuple):
    """Measured step of any work."""

    work: StepWork
    seconds: float


Coefficient = Literal["sequence", "context_token", "pair"]
"""Coefficients that a start measures."""


class StepContrast(NamedTuple):
    """Two measured steps whose work differs only in the amount that a coefficient stands for."""

    coefficient: Coefficient
    less: TimedStep
    more: TimedStep

    @property
    def slope(self) -> float:
        """Returns the coefficient's seconds, which noise may make negative."""
        return (self.more.seconds - self.less.seconds) / (self._amount(self.more.work) - self._amount(self.less.work))

    def _amount(self, work: StepWork) -> float:
        match self.coefficient:
            case "sequence":
                return work.sequences
            case "context_token":
                return work.context
            case "pair":
                return work.pairs


def seeded(
    measured: Sequence[MeasuredStep],
    parameters: int,
    weights_bytes: int,
    token_bytes: int,
    layers: int,
    contrasts: Sequence[StepContrast] = (),
) -> StepCosts:
    """Estimates step costs from measured steps of prompts; without any they are unknown.

    A line through the shortest and the longest step gives `step` and `prompt_token`. The others come from `contrasts`,
    as far as these were measured: `step` is then what is left of a lone decode. Coefficients without a contrast are
    derived: a decoded token, and a row of a draft token, cost as much as a token of a prompt. A pair costs
    4·layers·width / (2·parameters) of a token, the ratio of their operations, where parameters = 12·layers·width²
    (Kaplan et al., 2020). KV, `token_bytes` per token of the context, is read as fast as the weights in a step that
    does little else; a CPU's attention takes ten times that, so the derived figure is a floor.
    """
    if not measured:
        return StepCosts()
    short, long = min(measured), max(measured)
    token = MIN_SHARE * long.seconds / long.tokens
    if long.tokens > short.tokens:
        token = max(token, (long.seconds - short.seconds) / (long.tokens - short.tokens))
    step = max(MIN_SHARE * short.seconds, short.seconds - token * short.tokens)
    width = sqrt(parameters / (12 * layers))
    derived = StepCosts(
        step=step,
        prompt_token=token,
        pair=token * 2 * layers * width / parameters,
        sequence=token,
        context_token=step * token_bytes / weights_bytes,
        row=token,
    )
    return _contrasted(derived, contrasts)


def _contrasted(derived: StepCosts, contrasts: Sequence[StepContrast]) -> StepCosts:
    costs = derived
    for each in contrasts:
        least = MIN_SHARE * getattr(derived, each.coefficient)
        costs = structs.replace(costs, **{each.coefficient: max(least, each.slope)})
    for lone in [each.less for each in contrasts if each.coefficient == "sequence"]:
        left = lone.seconds - costs.sequence - costs.context_token * lone.work.context
        costs = structs.replace(costs, step=max(MIN_SHARE * lone.seconds, left))
    measured = {each.coefficient for each in contrasts}
    return structs.replace(costs, told_apart=measured == set(get_args(Coefficient)))
