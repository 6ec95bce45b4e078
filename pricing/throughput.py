"""Measures how fast first tokens come, and how long a prompt would wait behind those that have none yet.

What workers say of their steps is a model; this is what the gateway has seen: tokens of prompts whose first token came,
in the seconds in which some were awaited, newer ones counting more. All that are awaited, divided by that, is the wait
(Little, "A proof for the queuing formula L = λW", 1961). It needs no word from a worker, so it also knows what they do
not: how much of the host they have. Of what is awaited only what is computed before the prompt counts: tenants take
turns.
"""

from collections import Counter
from math import exp

from pricing.backlog import Owner, PromptWork, largest_tenants, tokens_before

MEMORY = 3.0  # s after which what was seen counts 1/e
ENOUGH = 0.5  # s of waiting, as they count now, from which anything is known


class PromptThroughput:
    """Follows the prompts of one gateway. `now` is local time, s."""

    def __init__(self) -> None:
        self._awaited: dict[str, PromptWork] = {}  # by request
        self._tokens: Counter[Owner] = Counter()  # of all of those
        self._came = 0.0  # tokens whose first token came, as they count now
        self._busy = 0.0  # s in which some were awaited, likewise
        self._looked = 0.0

    def begins(self, request: str, tokens: int, owner: Owner, now: float) -> None:
        """Notes that a prompt is on its way, of which so many tokens are to be computed."""
        self.ends(request, now)
        self._look(now)
        self._awaited[request] = PromptWork(tokens, 0, owner)
        self._tokens[owner] += tokens

    def ends(self, request: str, now: float, came: bool = False) -> None:
        """Notes that a prompt is not awaited any more: its first token has come, or it is given up."""
        if request not in self._awaited:
            return
        self._look(now)
        prompt = self._awaited.pop(request)
        self._tokens[prompt.owner] -= prompt.tokens
        if not self._tokens[prompt.owner]:
            del self._tokens[prompt.owner]
        if came:
            self._came += prompt.tokens

    def wait(self, tokens: int, owner: Owner, now: float) -> float:
        """Returns the s until a prompt that comes now would have its first token; 0 while nothing is known."""
        self._look(now)
        if self._busy < ENOUGH or not self._awaited:
            return 0.0
        before = tokens_before(tokens, owner, largest_tenants(self._tokens), self._tokens.total())
        return (before + tokens) * self._busy / max(self._came, 1.0)

    def _look(self, now: float) -> None:
        passed = max(0.0, now - self._looked)
        if self._awaited:  # an idle time says nothing, and is not forgotten by
            keep = exp(-passed / MEMORY)
            self._came *= keep
            self._busy = self._busy * keep + passed
        self._looked = now
