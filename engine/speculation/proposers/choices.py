"""Chooses the tree of Medusa draft tokens that are verified together (`medusa_choices`).

A choice is a path of ranks, from 0 on: (0, 2) is the third best token of the second head, after the best token of the
first head. Parents come before their children, and choices with a higher acceptance rate before others, so that the
first n choices are the best tree of n draft tokens, or nearly.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Choice = tuple[int, ...]
Chance = Callable[[int, int], float]
"""(head, rank), both from 0 on → chance that the draft token is accepted if all earlier draft tokens are."""

MAX_CHOICES = 63
"""Maximum draft tokens of a tree: see `engine.model.trees`."""
DEEPEST_RANK = 32
"""Number of ranks that a choice may use."""


def assumed(head: int, rank: int) -> float:
    """Returns the assumed acceptance rate of a head's draft token, close to that of the demo model's heads."""
    return 0.65 * 0.9**head * (1.0 if rank == 0 else 0.18 / rank)


def likeliest(heads: int, count: int, chance: Chance = assumed) -> tuple[Choice, ...]:
    """Returns the `count` most likely choices for `heads` heads: most likely first, parents before children.

    The chance of a choice is its parent's chance times its own.
    """
    found: list[Choice] = []
    waiting: list[tuple[float, Choice, float]] = [(-chance(0, 0), (0,), 1.0)]  # (-chance, choice, parent's chance)
    while waiting and len(found) < count:
        negative, choice, before = heapq.heappop(waiting)
        found.append(choice)
        head, rank = len(choice) - 1, choice[-1] + 1
        if rank < DEEPEST_RANK:
            heapq.heappush(waiting, (-before * chance(head, rank), (*choice[:-1], rank), before))
        if head + 1 < heads:
            heapq.heappush(waiting, (negative * chance(head + 1, 0), (*choice, 0), -negative))
    return tuple(found)


def choices_problem(choices: Any, heads: int) -> str:
    """Returns why a list of choices is invalid for `heads` heads; empty if it is valid."""
    if not isinstance(choices, list) or not choices:
        return "not a list of paths"
    known: set[Choice] = {()}
    for path in choices:
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
    """A tree of choices, with parents by index."""

    choices: tuple[Choice, ...]
    parents: tuple[int, ...]  # index of each choice's parent, or -1

    @staticmethod
    def of(choices: Sequence[Choice]) -> "Tree":
        """Makes the tree. `choices` must have no `choices_problem`."""
        places = {choice: place for place, choice in enumerate(choices)}
        return Tree(tuple(choices), tuple(places.get(choice[:-1], -1) for choice in choices))

    def within(self, count: int, depth: int) -> int:
        """Returns how many of the first `count` choices precede the first one deeper than `depth`."""
        deeper = (place for place, choice in enumerate(self.choices[:count]) if len(choice) > depth)
        return next(deeper, min(count, len(self.choices)))

    def parents_of(self, count: int) -> tuple[int, ...]:
        """Returns the parents of the first `count` choices, as `Work.parents`; empty for a chain."""
        parents = self.parents[:count]
        return () if parents == tuple(range(-1, count - 1)) else parents
