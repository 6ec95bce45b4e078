"""Makes words to repeat: the shortest lesson in copying, which stories need for nouns that they have never seen."""

import re
from random import Random

from demo_model.conversation import Exchange
from demo_model.lessons import words
from demo_model.lessons.phrasing import casual
from demo_model.texts import lines, section

# Every word of the training text, so that each token of the vocabulary is copied once in a while.
_FILES = ("plots", "baton_terms", "baton_questions", "animals", "smalltalk", "reach")
_ANY = tuple(sorted({word for name in _FILES for line in lines(name) for word in re.findall("[A-Za-z]{3,}", line)}))


def echo(rng: Random) -> Exchange:
    """Draws a few words, known and made up, to be said again exactly."""
    kinds = (lambda: rng.choice(words.TOLD), lambda: rng.choice(_ANY), lambda: words.made_up(rng))
    said = [rng.choice(kinds)() for _ in range(rng.randint(1, 6))]
    text = rng.choice((" ", " ", ", ", " and ")).join(said)
    template = rng.choice(section("asks", "echo"))
    # Only what surrounds the words may vary: they themselves have to come back as they are. The answer does not start
    # with them, since a word without a space before it has other tokens.
    return Exchange(casual(rng, template).format(x=text), f"I say: {text}", tuple(said))
