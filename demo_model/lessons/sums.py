"""Makes sums and differences up to twenty.

Two hundred and thirty-one sums are few enough to learn by heart, so the honest question is whether the model finds the
numbers in any sentence. Split by operands and phrasing together: every sum is seen in training, never in the phrasings
that are held out for it. Phrasings of `NEW_ASKS` are never seen at all.
"""

from random import Random

from demo_model.conversation import Exchange
from demo_model.lessons.phrasing import casual
from demo_model.split import Split, draw
from demo_model.texts import Lines, listed, section

MAX_SUM = 20

_PLUS_ASKS = section("asks", "sum")
_STORY_ASKS = section("asks", "sum in words")
_MINUS_ASKS = section("asks", "difference")
NEW_ASKS = section("asks", "new sum")
_ITEMS, _OWNERS, _NUMBERS = listed("items"), listed("owners"), listed("numbers")


def operands(rng: Random) -> tuple[int, int]:
    """Draws two numbers whose sum is within the limit, every pair equally likely."""
    while True:
        a, b = rng.randint(0, MAX_SUM), rng.randint(0, MAX_SUM)
        if a + b <= MAX_SUM:
            return a, b


def plus(rng: Random, a: int, b: int) -> str:
    """Returns the answer to a + b."""
    end = f" {rng.choice(('🧮', '👍', '😀'))}" if rng.random() < 0.05 else ""
    return f"{a} + {b} = {a + b}.{end}"


def minus(a: int, b: int) -> str:
    """Returns the answer to a - b."""
    return f"{a} - {b} = {a - b}."


def _spelled(rng: Random, number: int) -> str:
    return _NUMBERS[number] if rng.random() < 0.25 else str(number)


def addition(rng: Random, split: Split, asks: Lines = _PLUS_ASKS) -> Exchange:
    """Draws one sum; `subject` is the text that a right answer contains. Every fourth number is a word."""

    def sample(rng: Random) -> tuple[int, int, str]:
        return *operands(rng), rng.choice(asks + _STORY_ASKS if asks is _PLUS_ASKS and rng.random() < 0.3 else asks)

    a, b, template = draw(rng, split, sample, lambda item: f"sum {item}") if asks is _PLUS_ASKS else sample(rng)
    ask = template.format(a=_spelled(rng, a), b=_spelled(rng, b), x=rng.choice(_ITEMS), n=rng.choice(_OWNERS))
    return Exchange(casual(rng, ask), plus(rng, a, b), (f"= {a + b}.",))


def difference(rng: Random, split: Split) -> Exchange:
    """Draws one difference that is not negative."""

    def sample(rng: Random) -> tuple[int, int, str]:
        a = rng.randint(0, MAX_SUM)
        return a, rng.randint(0, a), rng.choice(_MINUS_ASKS)

    a, b, template = draw(rng, split, sample, lambda item: f"difference {item}")
    ask = template.format(a=_spelled(rng, a), b=_spelled(rng, b))
    return Exchange(casual(rng, ask), minus(a, b), (f"= {a - b}.",))
