"""Facts about animals: what each is, what it eats, where it lives, and what is special about it."""

from dataclasses import dataclass
from random import Random

from demo_model.conversation import Exchange
from demo_model.lessons.phrasing import casual
from demo_model.lessons.words import capital, with_article
from demo_model.split import Split, draw
from demo_model.texts import lines, section


@dataclass(frozen=True, slots=True)
class Animal:
    """Describes one animal. `facts` are whole sentences; `eats` and `lives` go on from "Foxes eat" and "Foxes live"."""

    one: str
    many: str
    emoji: str
    eats: str
    lives: str
    facts: tuple[str, ...]


def _parse(line: str) -> Animal:
    one, many, emoji, eats, lives, *facts = (part.strip() for part in line.split("|"))
    return Animal(one, many, emoji, eats, lives, tuple(facts))


ANIMALS = tuple(_parse(line) for line in lines("animals"))

_FACT_ASKS = section("asks", "animal")
_KINDS = (
    ("fact", _FACT_ASKS),
    ("fact", _FACT_ASKS),  # twice as often: there are three facts to learn
    ("eats", section("asks", "animal eats")),
    ("lives", section("asks", "animal lives")),
)


def answers(animal: Animal, kind: str) -> tuple[str, ...]:
    """Returns every right answer, without emoji."""
    if kind == "fact":
        return animal.facts
    verb = "eat" if kind == "eats" else "live"
    many = animal.many.capitalize()
    return (f"{many} {verb} {animal.eats if kind == 'eats' else animal.lives}.",)


def answer(rng: Random, animal: Animal, kind: str, without: str = "") -> str:
    """Draws one right answer, not the one that was just given; a fact comes with the animal's emoji."""
    everything = answers(animal, kind)
    choices = [text for text in everything if text not in without] or everything
    return rng.choice(choices) + (f" {animal.emoji}" if kind == "fact" else "")


def animal_of(exchange: Exchange) -> Animal:
    """Returns the animal that an exchange of `fact` is about."""
    kinds = ("fact", "eats", "lives")
    return next(animal for animal in ANIMALS if exchange.subject in [answers(animal, kind) for kind in kinds])


def ask_of(rng: Random, template: str, animal: Animal) -> str:
    """Fills the question's template with this animal."""
    text = template.format(m=animal.many, o=animal.one, a=with_article(animal.one))
    return casual(rng, capital(text))


def fact(rng: Random, split: Split) -> Exchange:
    """Draws a question on one animal; split by animal and phrasing. `subject` lists the right answers."""

    def sample(rng: Random) -> tuple[Animal, str, str]:
        kind, asks = rng.choice(_KINDS)
        return rng.choice(ANIMALS), kind, rng.choice(asks)

    animal, kind, template = draw(rng, split, sample, lambda item: f"fact {item[0].one} {item[2]}")
    return Exchange(ask_of(rng, template, animal), answer(rng, animal, kind), answers(animal, kind))


def any_fact(rng: Random) -> Exchange:
    """Draws a fact about whichever animal comes to mind."""
    return Exchange(casual(rng, rng.choice(section("asks", "any animal"))), answer(rng, rng.choice(ANIMALS), "fact"))
