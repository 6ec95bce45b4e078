"""Limits the prompt tokens of a step with decodes, to limit the time between output tokens.

    prompt token budget = (target - seconds of the decodes) / seconds of a prompt token

Both are learned from past steps, since they depend on text lengths and on the load of the host (chunks beside decodes
after Sarathi-Serve, Agrawal et al., OSDI 2024, whose budget is a constant found by profiling).
"""

from collections.abc import Sequence
from math import inf

MIN_PROMPT_TOKENS = 16
"""Minimum budget of a step, so that prompts make progress however slow the decodes are."""
NEWEST_STEP_WEIGHT = 0.25
"""Weight of the newest step in the averages."""
MAX_STEP_RATIO = 4.0
"""Maximum ratio, up or down, at which a step counts relative to the average: an outlier was probably suspended."""


class Chunking:
    """Learns the seconds of steps, and gives the next step its prompt token budget. Reads no clock."""

    def __init__(self, target: float = inf, tokens_per_second: float = 0.0) -> None:
        """`target`: maximum seconds of a step with decodes.

        `tokens_per_second`: of prompts, as measured at start; 0: unknown.
        """
        self._target = target
        self._decodes = 0.0  # s of a step without prompts
        self._token = 1 / tokens_per_second if tokens_per_second else 0.0  # s of a prompt token

    def budget(self, most: int) -> int:
        """Returns the prompt token budget of a step with decodes, at most `most`."""
        left = max(0.0, self._target - self._decodes)
        if left >= most * self._token:
            return most
        return min(most, max(MIN_PROMPT_TOKENS, int(left / self._token)))

    def learn(self, prompt_tokens: int, decodes: int, durations: Sequence[float]) -> None:
        """Learns from steps of `prompt_tokens` and `decodes` sequences that took these seconds, one after the other.

        A few prompt tokens beside decodes are ignored: steps vary by more than such a chunk takes.
        """
        if decodes and 0 < prompt_tokens < MIN_PROMPT_TOKENS:
            return
        for seconds in durations:
            if seconds <= 0:
                continue  # the clock was set
            if prompt_tokens:
                self._learn_prompts(prompt_tokens, decodes, seconds)
            else:
                self._decodes += NEWEST_STEP_WEIGHT * (seconds - self._decodes)

    def _learn_prompts(self, prompt_tokens: int, decodes: int, seconds: float) -> None:
        if decodes:
            self._decodes = min(self._decodes, seconds)  # fewer or faster decodes than before
            seconds -= self._decodes
        token = seconds / prompt_tokens
        known = self._token or token
        self._token = (
            known * min(MAX_STEP_RATIO, max(1 / MAX_STEP_RATIO, token / known)) ** NEWEST_STEP_WEIGHT if known else 0.0
        )
