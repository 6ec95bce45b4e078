"""Demand on each role: the work of arriving prompts, and the size of a usual prompt. Exponential averages."""

from math import exp

from pricing.routes.route import Choice

DEMAND_MEMORY_S = 30.0  # time constant of the work that arrives, in seconds
PROMPT_WEIGHT = 0.02  # weight of a new prompt in the usual prompt
PRIOR_PROMPT_TOKENS = 256.0  # tokens to compute of a usual prompt, before the first prompt has come


class Demand:
    """Counts each prompt once, on arrival, whether or not it is served. `now` is local time, s."""

    def __init__(self, now: float) -> None:
        self._begun = self._looked = now
        self._work = {"prefill": 0.0, "decode": 0.0}  # decayed s of computation, by the role that would do it
        self.usual_tokens = PRIOR_PROMPT_TOKENS
        self.usual_start = 0.0  # tokens before these, whose KV a worker had

    def came(self, choice: Choice, now: float) -> None:
        self._look(now)
        self._work["prefill" if choice.route.prefill else "decode"] += choice.seconds
        self.usual_tokens += PROMPT_WEIGHT * (choice.tokens - self.usual_tokens)
        self.usual_start += PROMPT_WEIGHT * (choice.start - self.usual_start)

    def work(self, role: str, now: float) -> float:
        """Returns the seconds of computation that arrive per second for a role: the workers that it keeps busy."""
        self._look(now)
        seen = 1 - exp(-max(1.0, now - self._begun) / DEMAND_MEMORY_S)
        return self._work[role] / (DEMAND_MEMORY_S * seen)

    def _look(self, now: float) -> None:
        keep = exp(-max(0.0, now - self._looked) / DEMAND_MEMORY_S)
        self._work = {role: keep * work for role, work in self._work.items()}
        self._looked = now
