"""Reads the plots of stories from `texts/plots.txt`.

A story is an opening, a meeting, a bond, one arc and a closing. An arc is a list of stages; each stage offers several
sentences that fit every choice made before, so that any path through an arc makes sense. Slots: {H} is the hero ("the
fox", "Anna"), {a_H} the hero's introduction ("a small fox"), {T} the thing and {F} the friend, {a_T} and {a_F} their
introductions, {K} and {a_K} a helper, {P} a place with "the" before it, {adj} and {weather} loose words. No pronoun
stands for a hero: the name itself keeps the story on its topic, and a name has no wrong gender.
"""

from dataclasses import dataclass

from demo_model.texts import Lines, blocks, section

Arc = tuple[Lines, ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """Says how stories of one shape go: how hero and other come together, what it means to them, what then happens."""

    meetings: Lines
    bonds: Lines
    arcs: tuple[Arc, ...]


def _arcs(title: str) -> tuple[Arc, ...]:
    """Reads the arcs under a title; a line "-" divides an arc's stages."""
    found = ("\n".join(body).split("\n-\n") for name, body in blocks("plots") if name == title)
    return tuple(tuple(tuple(stage.split("\n")) for stage in arc) for arc in found)


OPENINGS = section("plots", "openings")
CLOSINGS = section("plots", "closings")
QUEST = Plot(section("plots", "findings"), section("plots", "wonders"), _arcs("quest"))
FRIENDSHIP = Plot(section("plots", "meetings"), section("plots", "bonds"), _arcs("friendship"))
