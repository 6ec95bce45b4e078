"""Decides how many tokens of prompts a step takes beside decodes, so that those keep their pace.

A step's seconds are those of its decodes, and some for each token of a prompt. Both are learned from the steps that
have run, for they depend on the length of the texts, and on who else computes on this host. What the target leaves to
prompts, divided by the seconds of a token, is the step's room (chunks beside decodes after Sarathi-Serve, Agrawal et
al., OSDI 2024, whose budget is a constant that profiling finds).
"""

from math import inf

MIN_PROMPT_TOKENS = 16
"""Tokens that a step always has room for, so that prompts get on however slow the decodes beside them are."""
NEWEST_STEP_WEIGHT = 0.25
"""The newest step's weight in what is known."""
MAX_STEP_RATIO = 4.0
"""A step counts as at most so many times slower or faster than what is known: it may have stood still for a moment."""


class Chunking:
    """Learns what steps take, and gives the next one its room. It knows no clock: the caller says what a step took."""

    def __init__(self, target: float = inf, tokens_per_second: float = 0.0) -> None:
        """Begins with what a start has measured.

        `target`: seconds that a step with decodes in it may take. `tokens_per_second`: of prompts; 0: not known.
        """
        self._target = target
        self._decodes = 0.0  # s that a step without prompts takes
        self._token = 1 / tokens_per_second if tokens_per_second else 0.0  # s that a token of a prompt takes

    def room(self, most: int) -> int:
        """Returns how many tokens of prompts a step with decodes in it takes, `most` at most."""
        left = max(0.0, self._target - self._decodes)
        if left >= most * self._token:
            return most
        return min(most, max(MIN_PROMPT_TOKENS, int(left / self._token)))

    def learn(self, prompt_tokens: int, decodes: int, seconds: float) -> None:
        """Takes note that a step with so many tokens of prompts, and so many sequences that decode, took `seconds`.

        A few tokens beside decodes tell nothing: what they take is less than what one step differs from the next.
        """
        if seconds <= 0 or (decodes and 0 < prompt_tokens < MIN_PROMPT_TOKENS):
            return  # or the clock was set
        if not prompt_tokens:
            self._decodes += NEWEST_STEP_WEIGHT * (seconds - self._decodes)
            return
        if decodes:
            self._decodes = min(self._decodes, seconds)  # they are fewer now, or faster
            seconds -= self._decodes
        token = seconds / prompt_tokens
        known = self._token or token
        self._token = (
            known * min(MAX_STEP_RATIO, max(1 / MAX_STEP_RATIO, token / known)) ** NEWEST_STEP_WEIGHT if known else 0.0
        )
