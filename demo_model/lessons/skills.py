"""Defines what tools can do: each skill is a tool of changing name and shape, and the questions that call it.

Names, descriptions and arguments vary from conversation to conversation, and so does what a tool gives back, so that
the model learns to read the tool that it is given: which one the question means, and what to copy where.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from demo_model.conversation import Call, Exchange, Tool
from demo_model.lessons import words
from demo_model.lessons.phrasing import casual
from demo_model.split import Split, draw
from demo_model.texts import Lines, listed, section

Value = str | int


def _words(title: str) -> Lines:
    return tuple(" ".join(section("tools", title)).split())


_CITIES = _words("cities")
_TWO_WORDS = tuple(city.strip() for line in section("tools", "two-word cities") for city in line.split("|"))
_NUMBER_KEYS = tuple(pair.split() for line in section("tools", "number keys") for pair in line.split("|"))
_SKIES, _DAYS, _MONTHS = _words("skies"), _words("days"), _words("months")
_NOUNS, _UNITS, _COLORS = _words("fact nouns"), _words("units"), _words("colors")
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}
_NUMBERS = frozenset(listed("numbers"))
TWICE_SHARE = 0.08  # of the questions on a place are on two
UNDESCRIBED_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Skill:
    """Holds a tool, the words by which a question means it, and a maker of such questions."""

    topic: str  # two tools of one topic would fit the same question
    tool: Tool
    words: frozenset[str]
    use: Callable[[Random, Split], Exchange]

    def fits(self, ask: str) -> bool:
        """Tells whether a question may mean this tool."""
        said = "".join(sign if sign.isalnum() else " " for sign in ask.lower()).split()
        numbers = self.topic == "numbers" and any(word.isdigit() or word in _NUMBERS for word in said)
        return numbers or any(word.removesuffix("s") in self.words or word in self.words for word in said)


def _tool(rng: Random, kind: str, keys: dict[str, str], **slots: str) -> Tool:
    described = "" if rng.random() < UNDESCRIBED_SHARE else rng.choice(section("tools", f"{kind} tasks"))
    return Tool(rng.choice(_words(f"{kind} names")).format(**slots), described.format(**slots), keys)


def _typed(rng: Random, text: str) -> str:
    """Returns a name as people type it."""
    return text.lower() if rng.random() < 0.15 else text


def _place(rng: Random) -> str:
    roll = rng.random()
    if roll < 0.55:
        return rng.choice(_CITIES)
    return rng.choice(_TWO_WORDS) if roll < 0.65 else words.made_up(rng).capitalize()


def _json(rng: Random, *items: tuple[str, Value]) -> str:
    ordered = rng.sample(items, len(items))
    return json.dumps(dict(ordered), ensure_ascii=False)


Told = tuple[str, str, tuple[str, ...]]
"""A tool's result, the sentence that tells it, and the words in it that are copied."""


def _weather_of(rng: Random, place: str) -> Told:
    degrees, sky = rng.randint(-9, 39), rng.choice(_SKIES) if rng.random() < 0.9 else words.made_up(rng)
    roll = rng.random()
    if roll < 0.05:
        return str(degrees), f"It is {degrees} degrees in {place}.", (str(degrees), place)
    if roll < 0.5:
        text = rng.choice(
            (
                f"{degrees} degrees and {sky}",
                f"{sky}, {degrees} degrees",
                f"{sky} and {degrees} degrees",
                f"{sky}, {degrees}°C",
                f"{degrees}°C, {sky}",
                f"{degrees}°C",
                f"{degrees} degrees",
                sky,
            )
        )
        said = f"It is {text} in {place}."
        return said if rng.random() < 0.1 else text, said, (text, place)
    key = rng.choice(("temperature", "temperature", "temp", "degrees", "celsius"))
    items: list[tuple[str, Value]] = [(key, str(degrees) if rng.random() < 0.2 else degrees)]
    if rng.random() < 0.3:
        items.append((rng.choice(("city", "location", "place")), place))
    if roll < 0.6:
        return _json(rng, *items), f"It is {degrees} degrees in {place}.", (str(degrees), place)
    items.append((rng.choice(("weather", "condition", "conditions", "sky", "description")), sky))
    return _json(rng, *items), f"It is {degrees} degrees and {sky} in {place}.", (str(degrees), sky, place)


def _time_of(rng: Random, place: str) -> Told:
    time = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    if rng.random() < 0.2:
        time = f"{rng.randint(1, 12)} {rng.choice(('am', 'pm'))}"
    items = [("time", time), ("city", place)][: rng.randint(1, 2)]
    return time if rng.random() < 0.6 else _json(rng, *items), f"It is {time} in {place}.", (time, place)


def _about_a_place(kind: str, tell: Callable[[Random, str], Told]) -> Callable[[Random], Skill]:
    """Makes a skill that takes a place."""
    asks = section("tools", f"{kind} asks")

    def make(rng: Random) -> Skill:
        key = rng.choice(_words("place keys"))
        tool = _tool(rng, kind, {key: "string"})

        def use(rng: Random, split: Split) -> Exchange:
            def sample(rng: Random) -> tuple[str, str]:
                return _place(rng), rng.choice(asks)

            place, template = draw(rng, split, sample, lambda item: f"{tool.name} {item}")
            places = [_typed(rng, place)]
            if rng.random() < TWICE_SHARE:
                places.append(_typed(rng, _place(rng)))
            told = [tell(rng, place) for place in places]
            return Exchange(
                casual(rng, template).format(x=" and ".join(places)),
                " ".join(answer for _, answer, _ in told),
                tuple(word for _, _, copied in told for word in copied),
                tuple(
                    Call(tool.name, {key: place}, result) for place, (result, _, _) in zip(places, told, strict=True)
                ),
            )

        return Skill(kind, tool, frozenset(_words(f"{kind} words")), use)

    return make


def _date(rng: Random) -> Skill:
    """Makes a skill that takes nothing."""
    tool = _tool(rng, "date", {})

    def use(rng: Random, split: Split) -> Exchange:
        template = rng.choice(section("tools", "date asks"))
        day, month, number = rng.choice(_DAYS), rng.choice(_MONTHS), rng.randint(1, 28)
        year = rng.randint(2020, 2035)
        date = rng.choice(
            (day, f"{day}, {month} {number}", f"{number} {month} {year}", f"{year}-{number % 12 + 1:02}-{number:02}")
        )
        result = date if rng.random() < 0.6 else _json(rng, ("date", date))
        return Exchange(casual(rng, template), f"Today is {date}.", (date,), (Call(tool.name, {}, result),))

    return Skill("date", tool, frozenset(_words("date words")), use)


def _number(rng: Random) -> int:
    return rng.randint(0, rng.choice((20, 99, 99, 999, 9999)))


def _numbers(kind: str) -> Callable[[Random], Skill]:
    """Makes a skill that takes two numbers, or an expression of them."""

    def make(rng: Random) -> Skill:
        first, second = rng.choice(_NUMBER_KEYS)
        number = rng.choice(("number", "integer"))
        expression = rng.choice(_words("expression keys"))
        keys = {expression: "string"} if kind == "calculate" else {first: number, second: number}
        tool = _tool(rng, kind, keys)

        def use(rng: Random, split: Split) -> Exchange:
            def sample(rng: Random) -> tuple[str, int, int, str]:
                sign = rng.choice(tuple(_SIGNS)) if kind == "calculate" else kind
                return sign, _number(rng), _number(rng), rng.choice(section("tools", f"{sign} asks"))

            what, a, b, template = draw(rng, split, sample, lambda item: f"{tool.name} {item}")
            total = {"add": a + b, "subtract": a - b, "multiply": a * b}[what]
            said = f"{a} {_SIGNS[what]} {b}"
            arguments: dict[str, Value] = {expression: said} if kind == "calculate" else {first: a, second: b}
            key = rng.choice(("result", "result", "value", "answer"))
            result = str(total) if rng.random() < 0.7 else _json(rng, (key, total))
            ask = casual(rng, template).format(a=a, b=b)
            return Exchange(ask, f"{said} = {total}.", (said, str(total)), (Call(tool.name, arguments, result),))

        return Skill("numbers", tool, frozenset(("plus", "minus", "times", "sum", "add", "subtract", "calculate")), use)

    return make


def _thing(rng: Random) -> str:
    """Draws a word that a question may be about."""
    roll = rng.random()
    if roll < 0.35:
        return words.made_up(rng).capitalize() if rng.random() < 0.5 else words.made_up(rng)
    if roll < 0.45:
        return str(_number(rng))
    return rng.choice(rng.choice((_CITIES, words.NAMES, words.TOLD, listed("countries"))))


def _value(rng: Random) -> Value:
    """Draws a property."""
    kinds: tuple[Callable[[], Value], ...] = (
        lambda: _number(rng),
        lambda: f"{_number(rng)} {rng.choice(_UNITS)}",
        lambda: rng.choice(words.NAMES),
        lambda: rng.choice(_CITIES),
        lambda: rng.choice(_COLORS),
        lambda: words.made_up(rng),
        lambda: words.made_up(rng).capitalize(),
    )
    return rng.choice(kinds)()


def fact(rng: Random, made_up: bool = False) -> Skill:
    """Makes a skill that returns one property of any word: a tool with a new name each time."""
    roll = rng.random()
    noun = words.made_up(rng) if made_up or roll < 0.3 else rng.choice(_NOUNS if roll < 0.8 else words.TOLD).lower()
    key = rng.choice(_words("fact keys"))
    tool = _tool(rng, "fact", {key: "string"}, n=noun, k=key)

    def use(rng: Random, split: Split) -> Exchange:
        def sample(rng: Random) -> tuple[str, str]:
            return words.made_up(rng) if made_up else _thing(rng), rng.choice(section("tools", "fact asks"))

        thing, template = draw(rng, split, sample, lambda item: f"fact {item}")
        thing, value = _typed(rng, thing), _value(rng)
        items: list[tuple[str, Value]] = [(rng.choice((noun, noun, "result")), value), (key, thing)]
        result = str(value) if rng.random() < 0.6 else _json(rng, *items[: rng.randint(1, 2)])
        return Exchange(
            casual(rng, template).format(n=noun, x=thing),
            f"The {noun} of {thing} is {value}.",
            (noun, thing, str(value)),
            (Call(tool.name, {key: thing}, result),),
        )

    return Skill(noun, tool, frozenset((noun,)), use)


WEATHER, TIME = _about_a_place("weather", _weather_of), _about_a_place("time", _time_of)
SKILLS: tuple[tuple[float, Callable[[Random], Skill]], ...] = (
    (6, WEATHER),
    (4, TIME),
    (1, _date),
    (2, _numbers("add")),
    (2, _numbers("multiply")),
    (1, _numbers("subtract")),
    (2, _numbers("calculate")),
    (6, fact),
)
