"""Writes stories whose nouns come from the question.

A topic is one or two subjects. The plot always needs a hero and a thing, or two heroes: what the question leaves open
is filled with other nouns. Split by the set of nouns, or for one noun by noun and
phrasing, and some nouns are kept out of all stories in training (`Reserve.UNSEEN`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from demo_model.conversation import Exchange
from demo_model.lessons import plots, words
from demo_model.lessons.phrasing import casual
from demo_model.split import Split, draw, split_of
from demo_model.texts import section

ASKS = section("asks", "story")  # {t} is the topic: "a fox and a lantern"
_OPEN_ASKS = section("asks", "any story")

# What a subject is said to do: in the question | in the story.
_CLAUSES = tuple(line.split(" | ") for line in section("phrases", "clauses"))


class Reserve(Enum):
    """Where a story's nouns come from."""

    KNOWN = "nouns of the training stories"
    UNSEEN = "real nouns kept out of the training stories"
    MADE_UP = "words that do not exist"


@dataclass(frozen=True, slots=True)
class Subject:
    """Holds a noun on its way into a story: how it is asked for, introduced, called and put into the title."""

    noun: str
    asked: str
    intro: str
    called: str
    title: str
    thing: bool = False


_POOLS = {
    reserve: (words.on_side(words.CREATURES + words.PEOPLE, side), words.on_side(words.THINGS, side))
    for reserve, side in ((Reserve.KNOWN, Split.TRAIN), (Reserve.UNSEEN, Split.HELD_OUT))
}


def _noun(rng: Random, thing: bool, reserve: Reserve) -> str:
    if reserve is Reserve.MADE_UP:
        return words.made_up(rng)
    heroes, things = _POOLS[reserve]
    return rng.choice(things if thing else heroes)


def _subject(rng: Random, reserve: Reserve, thing: bool) -> Subject:
    """Draws a plain, described, possessed, plural or named subject."""
    roll = rng.random()
    if not thing and roll < 0.12 and reserve is not Reserve.UNSEEN:
        name = words.made_up(rng).capitalize() if reserve is Reserve.MADE_UP else rng.choice(words.NAMES)
        return Subject(
            name, name, f"{rng.choice(('a child', 'someone', 'a young traveler'))} called {name}", name, name
        )
    noun = _noun(rng, thing, reserve)
    bare, the = words.with_article(noun), f"the {noun}"
    described = words.with_article(f"{rng.choice(words.THING_ADJECTIVES if thing else words.HERO_ADJECTIVES)} {noun}")
    if roll < 0.55:
        # The question gives no adjective, the story may add its own.
        return Subject(noun, bare, described if rng.random() < 0.5 else bare, the, bare, thing)
    if roll < 0.72:
        return Subject(noun, described, described, the, described, thing)
    if roll < 0.90:
        asked = words.plural(noun) if roll < 0.86 else noun
        return Subject(noun, the if roll < 0.80 else asked, bare, the, bare, thing)
    if thing or roll < 0.93:
        owner = rng.choice(words.RELATIVES)
        owned = f"your {owner}'s {noun}"
        return Subject(noun, f"my {owner}'s {noun}", owned, owned, owned, thing)
    asked, told = rng.choice(_CLAUSES)
    return Subject(noun, f"{bare} {asked}", bare, the, f"{bare} {told}", thing)


def _topic(rng: Random, reserve: Reserve) -> tuple[Subject, ...]:
    first = _subject(rng, reserve, thing=rng.random() < 0.35)
    if rng.random() < 0.4:
        return (first,)
    second = _subject(rng, reserve, thing=rng.random() < 0.6)
    while second.noun == first.noun:
        second = _subject(rng, reserve, thing=rng.random() < 0.6)
    return first, second


def tell(rng: Random, subjects: tuple[Subject, ...], place: str | None = None) -> str:
    """Writes a story in which every subject plays a part, the first as its hero unless it is a lone thing.

    It starts by naming its topic: copying that from the question is easy, and the rest has it close by.
    """
    first, last = subjects[0], subjects[-1]
    if first is not last:
        hero, other = first, last
    elif first.thing:
        hero, other = _subject_of_ours(rng, False, subjects), first
    else:
        hero, other = first, _subject_of_ours(rng, rng.random() < 0.6, subjects)
    helper = _subject_of_ours(rng, False, [hero, other])
    slots = {
        "H": hero.called,
        "a_H": hero.intro,
        "T": other.called,
        "a_T": other.intro,
        "F": other.called,
        "a_F": other.intro,
        "a_K": helper.intro,
        "P": place or rng.choice(words.PLACES),
    }
    plot = plots.QUEST if other.thing and not hero.thing else plots.FRIENDSHIP
    sentences: list[str] = []
    bonds = (plot.bonds,) if rng.random() < 0.5 else ()
    for stage in (plots.OPENINGS, plot.meetings, *bonds, *rng.choice(plot.arcs), plots.CLOSINGS):
        # Not every path introduces the helper before naming it.
        known = any(helper.noun in sentence for sentence in sentences)
        helped = helper.called if known else helper.intro
        loose = {"adj": rng.choice(words.HERO_ADJECTIVES), "weather": rng.choice(words.WEATHER), "K": helped}
        sentences.append(words.capital(rng.choice(stage).format_map(slots | loose)))
    topic = " and ".join(s.title for s in subjects) + (f" near the {place}" if place else "")
    return " ".join((f"Here is a story about {topic}.", *sentences))


def _subject_of_ours(rng: Random, thing: bool, others: Sequence[Subject] = ()) -> Subject:
    """Draws a subject that the question did not name: a plain and known one, and none of the others."""
    noun = _noun(rng, thing, Reserve.KNOWN)
    while any(noun == other.noun for other in others):
        noun = _noun(rng, thing, Reserve.KNOWN)
    adjectives = words.THING_ADJECTIVES if thing else words.HERO_ADJECTIVES
    described = f"{rng.choice(adjectives)} {noun}" if rng.random() < 0.5 else noun
    return Subject(noun, "", words.with_article(described), f"the {noun}", "", thing)


def _key(phrasing: int, subjects: tuple[Subject, ...]) -> str:
    nouns = " ".join(sorted(s.noun for s in subjects))
    return f"story {nouns}" if len(subjects) == 2 else f"story {phrasing} {nouns}"


def training_topic(rng: Random, reserve: Reserve) -> tuple[Subject, ...]:
    """Draws subjects for a later turn of a training dialog. Its phrasings differ, so only pairs can be held out."""
    subjects = _topic(rng, reserve)
    while len(subjects) == 2 and split_of(_key(0, subjects)) is Split.HELD_OUT:
        subjects = _topic(rng, reserve)
    return subjects


def story(rng: Random, split: Split, reserve: Reserve | None = None) -> Exchange:
    """Draws a story on one or two subjects; in training, every fourth is about made-up words."""
    if reserve is None:
        reserve = Reserve.MADE_UP if rng.random() < 0.25 else Reserve.KNOWN

    def sample(rng: Random) -> tuple[int, tuple[Subject, ...]]:
        return rng.randrange(len(ASKS)), _topic(rng, reserve)

    # Made-up words come out new each time: they need no split.
    phrasing, subjects = (
        sample(rng) if reserve is not Reserve.KNOWN else draw(rng, split, sample, lambda item: _key(*item))
    )
    return story_of(rng, ASKS[phrasing], subjects)


def story_of(rng: Random, ask: str, subjects: tuple[Subject, ...], place: bool = True) -> Exchange:
    """Makes the exchange for these subjects; `ask` has the slot {t}. With `place`, it sometimes names one too."""
    topic = " and ".join(s.asked for s in subjects)
    named = rng.choice(words.PLACES) if place and rng.random() < 0.12 else None
    if named:
        topic += f" {rng.choice(('in', 'at', 'near'))} {rng.choice(('a', 'the'))} {named}"
    nouns = [s.noun for s in subjects]
    if named:
        nouns.append(named)
    asked = casual(rng, words.capital(ask.format(t=topic)))
    return Exchange(asked, tell(rng, subjects, named), tuple(nouns))


def any_story(rng: Random) -> Exchange:
    """Draws a story for a question without a topic."""
    hero = _subject_of_ours(rng, False)
    return Exchange(casual(rng, rng.choice(_OPEN_ASKS)), tell(rng, (replace(hero, title=hero.intro),)))
