"""Makes conversations with tools: questions that need one of them, and questions that need none."""

from collections.abc import Callable
from random import Random

from demo_model.conversation import Conversation, Exchange
from demo_model.lessons import skills
from demo_model.lessons.skills import Skill
from demo_model.split import Split

_COUNTS = (1, 2, 3, 4)
_COUNT_WEIGHTS = (7, 6, 5, 2)
_USE_SHARE = 0.7


def toolbox(rng: Random) -> list[Skill]:
    """Draws a few skills of different topics."""
    weights, makers = zip(*skills.SKILLS, strict=True)
    found: dict[str, Skill] = {}
    for make in rng.choices(makers, weights, k=rng.choices(_COUNTS, _COUNT_WEIGHTS)[0]):
        skill: Skill = make(rng)
        found.setdefault(skill.topic, skill)
    return rng.sample(list(found.values()), len(found))


def using(rng: Random, split: Split, skill: Skill, others: list[Skill]) -> Conversation:
    """Draws one question that calls a skill's tool, which lies among those of others."""
    exchange = skill.use(rng, split)
    box = [skill, *(other for other in others if other.topic != skill.topic and not other.fits(exchange.ask))]
    return Conversation((exchange,), tuple(each.tool for each in rng.sample(box, len(box))))


def unneeded(rng: Random, make: Callable[[Random], Exchange]) -> Conversation:
    """Draws a question that none of the tools at hand answers."""
    exchange, box = make(rng), toolbox(rng)
    while any(skill.fits(exchange.ask) for skill in box):
        box = toolbox(rng)
    return Conversation((exchange,), tuple(skill.tool for skill in box))


def tool_conversation(rng: Random, make: Callable[[Random], Exchange]) -> Conversation:
    """Draws a conversation that has tools at hand; `make` makes the questions that need none."""
    box = toolbox(rng)
    turns: list[Exchange] = []
    while not turns or rng.random() < 0.3:
        skill = rng.choice(box)
        exchange = skill.use(rng, Split.TRAIN) if rng.random() < _USE_SHARE else make(rng)
        if sum(skill.fits(exchange.ask) for skill in box) == bool(exchange.calls):
            turns.append(exchange)
    return Conversation(tuple(turns), tuple(skill.tool for skill in box))
