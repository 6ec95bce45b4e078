"""Makes greetings, thanks, names, and says who the model is."""

from random import Random

from demo_model.conversation import Exchange
from demo_model.lessons import words
from demo_model.lessons.phrasing import casual
from demo_model.texts import groups, section

CAN_DO = section("phrases", "can do")
_GROUPS = groups("smalltalk")
_PARTING = tuple(group for group in _GROUPS if {"Thanks", "Bye"} & set(group.asks))
_NAME_ASKS = section("asks", "name")
_NAME_ANSWERS = section("phrases", "greetings by name")
_RECALL_ASKS = section("asks", "name recall")


def smalltalk(rng: Random) -> Exchange:
    """Draws one of the little things that people say; nothing is held out, since every phrasing stands for itself."""
    group = rng.choice(_GROUPS)
    return Exchange(casual(rng, rng.choice(group.asks)), rng.choice(group.answers).format(can=rng.choice(CAN_DO)))


def introduction(rng: Random) -> Exchange:
    """Draws an exchange: somebody says a name, known or not, and is greeted by it."""
    name = rng.choice(words.NAMES) if rng.random() < 0.6 else words.made_up(rng).capitalize()
    greeting = rng.choice(_NAME_ANSWERS).format(n=name, can=rng.choice(CAN_DO))
    ask = rng.choice(_NAME_ASKS).format(n=name)
    # Mostly as it is written: a name in small letters has lost what the answer has to copy.
    return Exchange(casual(rng, ask) if rng.random() < 0.3 else ask, greeting, (name,))


def recall(rng: Random, name: str) -> Exchange:
    """Asks for the name that was given earlier."""
    return Exchange(casual(rng, rng.choice(_RECALL_ASKS)), f"Your name is {name}. 😊", (name,))


def recall_unknown(rng: Random) -> Exchange:
    """Asks for a name that nobody gave."""
    return Exchange(casual(rng, rng.choice(_RECALL_ASKS)), "You have not told me your name yet. What is it?")


def after_thanks(rng: Random) -> Exchange:
    """Says thanks or good-bye at the end of a conversation."""
    group = rng.choice(_PARTING)
    return Exchange(casual(rng, rng.choice(group.asks)), rng.choice(group.answers))
