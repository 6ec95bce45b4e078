"""A tree of guesses: likelier ones come first, each behind the one that it goes on from; bad lists are told."""

import re

import pytest

from engine.speculation.proposers.choices import MAX_CHOICES, Tree, assumed, choices_problem, likeliest


def chance(choice: tuple[int, ...]) -> float:
    found = 1.0
    for head, rank in enumerate(choice):
        found *= assumed(head, rank)
    return found


def test_the_first_choices_are_a_tree_of_the_likeliest() -> None:
    choices = likeliest(3, MAX_CHOICES)
    assert len(set(choices)) == MAX_CHOICES and choices[0] == (0,)
    for count in range(1, MAX_CHOICES + 1):
        assert choices_problem([list(choice) for choice in choices[:count]], 3) == ""
    chances = [chance(choice) for choice in choices]
    assert chances == sorted(chances, reverse=True)
    others = [
        (*way, rank) for way in ((), *choices) if len(way) < 3 for rank in range(20) if (*way, rank) not in choices
    ]
    assert max(map(chance, others)) <= chances[-1]


def test_parents_are_those_that_ways_go_on_from() -> None:
    tree = Tree.of(((0,), (0, 0), (1,), (0, 0, 0), (1, 0)))
    assert tree.parents == (-1, 0, -1, 1, 2)
    assert tree.parents_of(2) == () and tree.parents_of(3) == (-1, 0, -1)
    assert [tree.within(5, depth) for depth in (0, 1, 2, 3)] == [0, 1, 3, 5]
    assert tree.within(2, 4) == 2 and tree.within(9, 4) == 5


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "not a list of paths"),
        ("0", "not a list of paths"),
        ([[0], 1], "1 is not a list of ranks from 0 to 31"),
        ([[0], [32]], r"\[32\] is not a list of ranks"),
        ([[0], [0, 0, 0]], r"\[0, 0, 0\] needs 3 heads, but there are 2"),
        ([[0], [1, 0]], r"\[1, 0\] stands before \[1\]"),
        ([[0], [0]], r"\[0\] stands there twice"),
        ([[]], "a path without ranks"),
    ],
)
def test_a_list_that_is_no_tree_is_told(given: object, why: str) -> None:
    assert re.match(why, choices_problem(given, 2))
