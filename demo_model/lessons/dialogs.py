"""Makes conversations of several turns in which a question refers back to what was said."""

from random import Random

from demo_model.conversation import Exchange, Turns
from demo_model.lessons import animals, smalltalk, stories, sums
from demo_model.lessons.phrasing import casual
from demo_model.split import Split
from demo_model.texts import section


def _follow_up(rng: Random, kind: str) -> str:
    return rng.choice(section("follow_ups", kind))


def _named(subjects: tuple[stories.Subject, ...]) -> str:
    """Names the subjects as "It was about" goes on: "a fox and Anna"."""
    return " and ".join(subject.title for subject in subjects)


def story_dialog(rng: Random) -> Turns:
    """Draws a story, then another on the same nouns, on others, or a question on who was in it."""
    known = stories.Reserve.KNOWN if rng.random() < 0.6 else stories.Reserve.MADE_UP
    subjects = stories.training_topic(rng, known)
    turns = [stories.story_of(rng, rng.choice(stories.ASKS), subjects, place=False)]
    for _ in range(rng.randint(1, 2)):
        roll = rng.random()
        if roll < 0.4:
            turns.append(Exchange(casual(rng, _follow_up(rng, "story again")), stories.tell(rng, subjects)))
        elif roll < 0.75:
            subjects = stories.training_topic(rng, known)
            turns.append(stories.story_of(rng, _follow_up(rng, "story next"), subjects, place=False))
        else:
            turns.append(Exchange(casual(rng, _follow_up(rng, "story who")), f"It was about {_named(subjects)}."))
    return tuple(turns)


def sum_dialog(rng: Random) -> Turns:
    """Draws a sum, then others; or more added to its result."""
    turns = [sums.addition(rng, Split.TRAIN)]
    for _ in range(rng.randint(1, 3)):
        total = int(turns[-1].subject[0].strip("= ."))
        if rng.random() < 0.3:
            b = rng.randint(0, sums.MAX_SUM - total)
            a, template = total, _follow_up(rng, "sum more")
        else:
            (a, b), template = sums.operands(rng), _follow_up(rng, "sum next")
        turns.append(Exchange(casual(rng, template.format(a=a, b=b)), sums.plus(rng, a, b), (f"= {a + b}.",)))
    return tuple(turns)


def fact_dialog(rng: Random) -> Turns:
    """Draws a fact, then more on the same animal, or on another one."""
    first = animals.fact(rng, Split.TRAIN)
    animal = animals.animal_of(first)
    turns = [first]
    for _ in range(rng.randint(1, 3)):
        roll = rng.random()
        kind, template = "fact", _follow_up(rng, "animal more")
        if 0.35 < roll < 0.6:
            animal, template = rng.choice(animals.ANIMALS), _follow_up(rng, "animal other")
        elif 0.6 < roll < 0.8:
            kind, template = "eats", _follow_up(rng, "animal eats")
        elif roll > 0.8:
            kind, template = "lives", _follow_up(rng, "animal lives")
        answer = animals.answer(rng, animal, kind, without=turns[-1].answer)
        turns.append(Exchange(animals.ask_of(rng, template, animal), answer, animals.answers(animal, kind)))
    return tuple(turns)


def name_dialog(rng: Random, between: Exchange) -> Turns:
    """Draws a dialog: the user gives a name, asks for something else, and then asks for the name."""
    first = smalltalk.introduction(rng)
    middle = (between,) if rng.random() < 0.5 else ()
    return (first, *middle, smalltalk.recall(rng, first.subject[0]))
