"""Lists the nouns, adjectives and names that fill the slots of stories and questions.

Many nouns matter more than many plots: with few, a small model learns a list; with many, copying what the question says
is the cheaper thing to learn. For the same reason a share of the stories is about words that do not exist (`made_up`).
"""

from random import Random

from demo_model.split import Split, split_of
from demo_model.texts import Lines, listed


def on_side(nouns: Lines, split: Split) -> Lines:
    """Returns the nouns that stories may use on this side of the split."""
    return tuple(noun for noun in nouns if split_of(f"noun {noun}") is split)


CREATURES = listed("creatures")
PEOPLE = listed("people")
THINGS = listed("things")
PLACES = listed("places")
RELATIVES = listed("relatives")
NAMES = listed("names")
HERO_ADJECTIVES = listed("hero adjectives")
THING_ADJECTIVES = listed("thing adjectives")
WEATHER = listed("weather")

_STARTS, _MIDDLES, _ENDS = listed("starts"), listed("middles"), listed("ends")

# The nouns and names of training stories. The tokenizer gives each a token of its own: one is copied sooner than many.
# All other words show whether copying also works piece by piece.
TOLD = on_side(CREATURES + PEOPLE + THINGS, Split.TRAIN) + NAMES

_REAL = frozenset(CREATURES + PEOPLE + THINGS + PLACES)

_IRREGULAR = {
    "mouse": "mice",
    "goose": "geese",
    "sheep": "sheep",
    "deer": "deer",
    "moose": "moose",
    "bison": "bison",
    "wolf": "wolves",
    "elf": "elves",
    "dwarf": "dwarves",
    "ox": "oxen",
    "leaf": "leaves",
    "loaf": "loaves",
    "dice": "dice",
    "fisherman": "fishermen",
    "postman": "postmen",
    "policeman": "policemen",
    "snowman": "snowmen",
}


def made_up(rng: Random) -> str:
    """Makes up a noun that does not exist: it can be told about only by copying its pieces.

    Half are built from sounds, such as "sloomber", half from parts of nouns, such as "lanpet", whose pieces are those
    of real words.
    """
    while True:
        if rng.random() < 0.5:
            head, tail = rng.choice(TOLD).lower(), rng.choice(TOLD).lower()
            word = head[: rng.randint(2, 4)] + tail[-rng.randint(2, 4) :]
        else:
            more = rng.choice(_STARTS) + rng.choice(_MIDDLES) if rng.random() < 0.4 else ""
            word = rng.choice(_STARTS) + rng.choice(_MIDDLES) + more + rng.choice(_ENDS)
        if word not in _REAL:  # chance also makes "star" and "bell", which may be reserved
            return word


def with_article(phrase: str) -> str:
    """Puts "a" or "an" before a phrase, by its first sound."""
    silent = phrase.startswith(("hour", "honest"))
    vowel = phrase[0] in "aeiou" and not phrase.startswith(("uni", "one", "use"))
    return f"{'an' if silent or vowel else 'a'} {phrase}"


def plural(noun: str) -> str:
    """Returns the regular plural, or the irregular ones of the nouns above."""
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith(("s", "sh", "ch", "x", "z")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def capital(sentence: str) -> str:
    """Raises a sentence's first letter, also behind a quotation mark, and nothing else touched."""
    start = 1 if sentence.startswith('"') else 0
    return sentence[:start] + sentence[start : start + 1].upper() + sentence[start + 1 :]
