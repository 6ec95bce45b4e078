"""Says which guesses of Medusa heads are verified together: a tree of what the heads like best (`medusa_choices`).

A choice names a guess by the ranks on its way, from 0 on: (0, 2) is the second head's third best token, behind the
first head's best. Each stands behind the one that it goes on from, and what comes true oftener stands before the rest,
so that the first so many of them are the best tree of so many guesses, or near it.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Choice = tuple[int, ...]
Chance = Callable[[int, int], float]
"""Says how likely a head's guess of some rank is what comes, if all nearer tokens were foreseen; both from 0 on."""

MAX_CHOICES = 63
"""Guesses of a tree: see `engine.model.trees`."""
DEEPEST_RANK = 32
"""Ranks of a head that a choice may have."""


def assumed(head: int, rank: int) -> float:
    """Guesses how likely a head's guess is, where nobody has measured it: about what the demo model's heads come to."""
    return 0.65 * 0.9**head * (1.0 if rank == 0 else 0.18 / rank)


def likeliest(heads: int, count: int, chance: Chance = assumed) -> tuple[Choice, ...]:
    """Returns the `count` likeliest choices of so many heads: the best first, each behind the one that it goes on from.

    A choice's chance is that of the one before it, times its own.
    """
    found: list[Choice] = []
    waiting: list[tuple[float, Choice, float]] = [(-chance(0, 0), (0,), 1.0)]  # with the chance of the one before it
    while waiting and len(found) < count:
        negative, choice, before = heapq.heappop(waiting)
        found.append(choice)
        head, rank = len(choice) - 1, choice[-1] + 1
        if rank < DEEPEST_RANK:
            heapq.heappush(waiting, (-before * chance(head, rank), (*choice[:-1], rank), before))
        if head + 1 < heads:
            heapq.heappush(waiting, (negative * chance(head + 1, 0), (*choice, 0), -negative))
    return tuple(found)


def choices_problem(given: Any, heads: int) -> str:
    """Says what is wrong with a list of choices for so many heads; empty: nothing is."""
    if not isinstance(given, list) or not given:
        return "not a list of paths"
    known: set[Choice] = {()}
    for path in given:
        if not isinstance(path, list) or not all(isinstance(rank, int) and 0 <= rank < DEEPEST_RANK for rank in path):
            return f"{path!r} is not a list of ranks from 0 to {DEEPEST_RANK - 1}"
        choice = tuple(path)
        if len(choice) > heads:
            return f"{path!r} needs {len(choice)} heads, but there are {heads}"
        if not choice:
            return "a path without ranks"
        if choice in known or choice[:-1] not in known:
            return f"{path!r} stands there twice" if choice in known else f"{path!r} stands before {path[:-1]!r}"
        known.add(choice)
    return ""


@dataclass(frozen=True)
class Tree:
    """Holds choices as a proposer looks them up."""

    choices: tuple[Choice, ...]
    parents: tuple[int, ...]  # of each choice the one that it goes on from, or -1

    @staticmethod
    def of(choices: Sequence[Choice]) -> "Tree":
        """Makes the tree of choices without a `choices_problem`."""
        places = {choice: place for place, choice in enumerate(choices)}
        return Tree(tuple(choices), tuple(places.get(choice[:-1], -1) for choice in choices))

    def within(self, count: int, depth: int) -> int:
        """Returns how many of the first `count` choices stand before the first that goes deeper than `depth`."""
        deeper = (place for place, choice in enumerate(self.choices[:count]) if len(choice) > depth)
        return next(deeper, min(count, len(self.choices)))

    def parents_of(self, count: int) -> tuple[int, ...]:
        """Returns the parents of the first `count` choices as a work has them; none, where they do not branch."""
        parents = self.parents[:count]
        return () if parents == tuple(range(-1, count - 1)) else parents
