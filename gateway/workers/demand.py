"""Follows the prompts that come to this gateway: the work that they are, and how long usual ones are."""

from math import exp

from gateway.workers.route import Choice

MEMORY = 30.0  # s after which what came counts 1/e
FRESH = 0.02  # the weight of a prompt that has come in what is usual
USUAL = 256.0  # tokens that are computed of a prompt, before any has come


class Demand:
    """Counts each prompt once, when it comes, whether it is served then or not. `now` is local time, s."""

    def __init__(self, now: float) -> None:
        self._begun = self._looked = now
        self._work = {"prefill": 0.0, "decode": 0.0}  # s of computation, as they count now, by who would do it
        self.usual_tokens = USUAL
        self.usual_start = 0.0  # tokens before those, whose KV a worker had

    def came(self, choice: Choice, now: float) -> None:
        """Notes that a prompt has come, and what is expected of its best route."""
        self._look(now)
        self._work["prefill" if choice.route.prefill else "decode"] += choice.seconds
        self.usual_tokens += FRESH * (choice.tokens - self.usual_tokens)
        self.usual_start += FRESH * (choice.start - self.usual_start)

    def work(self, role: str, now: float) -> float:
        """Returns the s of computation that come in a second, for workers of a role."""
        self._look(now)
        seen = 1 - exp(-max(1.0, now - self._begun) / MEMORY)
        return self._work[role] / (MEMORY * seen)

    def _look(self, now: float) -> None:
        keep = exp(-max(0.0, now - self._looked) / MEMORY)
        self._work = {role: keep * work for role, work in self._work.items()}
        self._looked = now
