"""Lets tenants take turns by weight: a deficit round-robin over the tokens that are computed for each.

Whose turn it is stays until it has used up what it was given (Shreedhar and Varghese, "Efficient fair queuing using
deficit round robin", SIGCOMM 1995). As prompts are cut into chunks, nobody has to have saved a whole prompt before: the
last chunk of a turn may be a debt, which the next rounds pay. So between two tenants that both have work all the time
the tokens over their weights differ by a quantum and a chunk at most, and a tenant's burst makes that tenant wait.
"""

from collections.abc import Mapping
from math import floor

QUANTUM = 512  # tokens that a tenant of weight 1 is given in a round


class Shares:
    """Keeps what each tenant that has work may still take."""

    def __init__(self) -> None:
        self._left: dict[str, float] = {}  # tokens, by tenant in the order of their turns; the first one's turn it is

    def turn(self, weights: Mapping[str, float]) -> str:
        """Returns whose turn it is among these tenants, of which there must be one.

        Who is not among them has no work, and keeps neither what is left nor debts.
        """
        left = {name: tokens for name, tokens in self._left.items() if name in weights}
        self._left = left | {name: 0.0 for name in weights if name not in left}
        first = next(iter(self._left))
        if len(weights) == 1:
            self._left[first] = 0.0  # what nobody else wanted is no debt
            return first
        if self._left[first] > 0:
            return first
        # The one whose turn it was comes last in each round. Rounds that give nobody enough are skipped.
        order = [*[*self._left][1:], first]
        rounds = [max(1, floor(-self._left[name] / (QUANTUM * weights[name])) + 1) for name in order]
        last = min(rounds)
        place = rounds.index(last)
        for at, name in enumerate(order):
            self._left[name] += (last if at <= place else last - 1) * QUANTUM * weights[name]
        self._left = {name: self._left[name] for name in [*order[place:], *order[:place]]}
        return order[place]

    def charge(self, tenant: str, tokens: int) -> None:
        """Counts tokens that were computed for a tenant whose turn it was."""
        if tenant in self._left:
            self._left[tenant] -= tokens
