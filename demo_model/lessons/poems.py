"""Writes small poems on one noun: the only answers of several lines."""

from random import Random

from demo_model.conversation import Exchange
from demo_model.lessons import words
from demo_model.lessons.phrasing import casual
from demo_model.split import Split
from demo_model.texts import lines, section

_POEMS = tuple("\n".join(lines("poems")).split("\n\n"))
_NOUNS = words.on_side(words.CREATURES + words.PEOPLE + words.THINGS, Split.TRAIN)


def poem(rng: Random) -> Exchange:
    """Draws four lines on a known or a made-up noun."""
    noun = rng.choice(_NOUNS) if rng.random() < 0.7 else words.made_up(rng)
    topic = rng.choice((words.with_article(noun), f"the {noun}", words.plural(noun)))
    ask = rng.choice(section("asks", "poem")).format(t=topic)
    return Exchange(casual(rng, ask), rng.choice(_POEMS).format(n=noun, a_n=words.with_article(noun)), (noun,))
