"""Questions that the model cannot answer; the answers say so, and what it can do instead."""

from random import Random

from demo_model.conversation import Exchange
from demo_model.lessons import words
from demo_model.lessons.animals import ANIMALS
from demo_model.lessons.phrasing import casual
from demo_model.lessons.smalltalk import CAN_DO
from demo_model.lessons.sums import MAX_SUM
from demo_model.split import Split
from demo_model.texts import groups, listed, section

_GROUPS = groups("reach")
_OWNING_UP = section("phrases", "owning up")
_TASKS = section("phrases", "tasks")
_KNOWN = {animal.one for animal in ANIMALS}
_NOUNS = tuple(n for n in words.on_side(words.CREATURES + words.THINGS, Split.TRAIN) if n not in _KNOWN)


def _numbers(rng: Random) -> dict[str, int]:
    """Draws numbers for sums that go too far: some just past the limit, some far past it."""
    near = rng.randint(2, MAX_SUM)
    big, other = (rng.randint(MAX_SUM + 1, rng.choice((40, 99, 999, 9999))) for _ in range(2))
    small = rng.randint(0, MAX_SUM - 1)
    return {
        "x": rng.randint(2, MAX_SUM),
        "y": rng.randint(2, MAX_SUM),
        "near": near,
        "small": small,
        "over": rng.randint(MAX_SUM + 1 - near, MAX_SUM),
        "more": rng.randint(small + 1, MAX_SUM),
        "big": big,
        "other": other,
    }


def _names(rng: Random) -> dict[str, str]:
    """Draws words for all other slots, some of them made up, so that the model learns to recognize unknown words."""
    noun = rng.choice(_NOUNS)
    junk = words.made_up(rng) + rng.choice(("", "?", " ...", f" {words.made_up(rng)}"))
    return {
        "city": rng.choice(listed("cities")),
        "country": rng.choice(listed("countries")),
        "lang": rng.choice(listed("languages")),
        "code": rng.choice(listed("programming")),
        "task": rng.choice(_TASKS),
        "food": rng.choice(listed("foods")),
        "topic": rng.choice(listed("topics")) if rng.random() < 0.7 else words.made_up(rng),
        "thing": words.with_article(noun),
        "noun": noun,
        "nouns": words.plural(noun),
        "person": f"{rng.choice(listed('first names'))} {words.made_up(rng).capitalize()}",
        "word": words.made_up(rng),
        "junk": junk,
    }


def out_of_reach(rng: Random) -> Exchange:
    """Draws a question that the model cannot answer; the answer takes it up, to show that it was understood."""
    group = rng.choice(_GROUPS)
    slots = _numbers(rng) | _names(rng)
    ask = rng.choice(group.asks).format_map(slots)
    no = words.capital(rng.choice(group.answers).format_map(slots))
    answer = rng.choice(_OWNING_UP).format(no=no, can=rng.choice(CAN_DO))
    return Exchange(casual(rng, ask) if rng.random() < 0.7 else ask, answer, (no,))
