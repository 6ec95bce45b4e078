"""Makes the text that the model learns from: an endless, seeded stream of conversations.

`python -m demo_model.corpus` prints a few of them.
"""

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from demo_model.conversation import Conversation, Exchange, Turns
from demo_model.lessons import animals, baton, dialogs, echo, poems, reach, smalltalk, stories, sums, tools
from demo_model.split import Split
from demo_model.texts import section

# Weights of single questions. By tokens, stories are more than half: binding is what a small model learns last.
_SINGLE: tuple[tuple[float, Callable[[Random], Exchange]], ...] = (
    (21, lambda rng: stories.story(rng, Split.TRAIN)),
    (1, stories.any_story),
    (3, poems.poem),
    (8, echo.echo),
    (15, lambda rng: sums.addition(rng, Split.TRAIN)),
    (14, lambda rng: sums.difference(rng, Split.TRAIN)),
    (14, lambda rng: animals.fact(rng, Split.TRAIN)),
    (1, animals.any_fact),
    (16, lambda rng: baton.about_baton(rng, Split.TRAIN)),
    (18, smalltalk.smalltalk),
    (2, smalltalk.introduction),
    (0.5, smalltalk.recall_unknown),
    (18, reach.out_of_reach),
)
_LINKED: tuple[tuple[float, Callable[[Random], Turns]], ...] = (
    (2.5, dialogs.story_dialog),
    (4, dialogs.sum_dialog),
    (4, dialogs.fact_dialog),
    (1.5, lambda rng: dialogs.name_dialog(rng, single(rng))),
)
SYSTEM_PROMPTS = section("phrases", "system prompts")
_LINKED_SHARE = 0.22
_ECHO_SHARE = 0.8
_TOOL_SHARE = 0.23
_BEYOND_SHARE = 0.3


def single(rng: Random) -> Exchange:
    """Draws one question with its answer."""
    weights, makers = zip(*_SINGLE, strict=True)
    make: Callable[[Random], Exchange] = rng.choices(makers, weights)[0]
    return make(rng)


def episode(rng: Random) -> Turns:
    """Draws a single question, or a few that belong together, sometimes with thanks at the end."""
    if rng.random() >= _LINKED_SHARE:
        return (single(rng),)
    weights, makers = zip(*_LINKED, strict=True)
    turns = rng.choices(makers, weights)[0](rng)
    return (*turns, smalltalk.after_thanks(rng)) if rng.random() < 0.2 else turns


def toolless(rng: Random) -> Exchange:
    """Draws a question to ask beside tools that do not answer it; often one that nothing answers."""
    return reach.out_of_reach(rng) if rng.random() < _BEYOND_SHARE else single(rng)


def conversation(rng: Random) -> Conversation:
    """Draws one conversation: mostly one episode, sometimes several on different topics; or one with tools."""
    if rng.random() < _TOOL_SHARE:
        return tools.tool_conversation(rng, toolless)
    turns = episode(rng)
    while rng.random() < 0.25:
        turns += episode(rng)
    return Conversation(turns)


def conversations(seed: int, lessons: int = 0) -> Iterator[Conversation]:
    """Yields the training stream of a seed, without end.

    The first `lessons` conversations are mostly words to repeat. A model that can copy by then sees at once where a
    story's nouns come from; one that meets stories first learns to make up nouns, and unlearns it slowly.
    """
    rng = Random(seed)
    for number in count():
        lesson = number < lessons and rng.random() < _ECHO_SHARE
        yield Conversation((echo.echo(rng),)) if lesson else conversation(rng)


def main() -> None:
    """Prints a few conversations of the training data."""
    stream = conversations(seed=0)
    for _ in range(20):
        talk = next(stream)
        print(talk.toolbox())
        for exchange in talk.turns:
            print(*(text for text in (f"> {exchange.ask}", exchange.calling(), exchange.results()) if text), sep="\n")
            print(exchange.answer, "\n")
        print("---")


if __name__ == "__main__":
    main()
