"""Requests of every kind of sampling and with every way to move, drawn at random."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.messages.sampling import Limits, Sampling
from gateway.grammar.texts import of_choices, of_json_schema, of_regex
from tests.engine.grammars.answering import CLOSING, ENDS, VOCABULARY

LAST_ARRIVAL = 30  # turn
GRAMMARS = (
    of_choices(["The quick brown fox jumps over the lazy dog.", "The quick red fox.", "No."]),
    of_regex("[a-f]{3}-[0-9]{2,6}( and again)?"),
    of_json_schema({"type": "object", "properties": {"name": {"enum": ["a", "b"]}, "size": {"type": "integer"}}}),
)
CLOSER = tuple((token, 4.0) for token in CLOSING)


@dataclass
class Question:
    """What somebody asks, and how it comes to its answer."""

    prompt: list[int]
    sampling: Sampling
    limits: Limits
    samples: int
    arrives: int  # turn
    handed_over: bool
    died_after: int  # output tokens of an attempt before this one
    released_at: int  # turn; its answer does not matter


def question(rng: random.Random, shared: list[int], longest: int) -> Question:
    """Draws one: of each kind of sampling about a third have it."""

    def maybe(make: Callable[[], Any], otherwise: Any, chance: float = 0.3) -> Any:
        return make() if rng.random() < chance else otherwise

    grammar = maybe(lambda: rng.choice(GRAMMARS), "")
    letters: list[int] = [] if grammar else maybe(lambda: rng.sample(range(VOCABULARY), 6), [])
    sampling = Sampling(
        seed=rng.randrange(1 << 32),
        temperature=rng.choice((0.0, 0.7, 1.0, 1.5)),
        top_p=maybe(lambda: 0.8, 1.0),
        top_k=maybe(lambda: rng.choice((1, 5, 40)), 0),
        min_p=maybe(lambda: 0.05, 0.0, 0.1),
        repetition_penalty=maybe(lambda: rng.choice((0.8, 1.3)), 1.0),
        presence_penalty=maybe(lambda: rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(lambda: rng.uniform(-2, 2), 0.0),
        logit_bias=CLOSER if grammar else maybe(lambda: ((rng.randrange(VOCABULARY), rng.uniform(-9, 9)),), ()),
        allowed_token_ids=tuple(letters) if letters else None,
        bad_words=maybe(lambda: _words(rng, letters or range(VOCABULARY)), (), 0.6 if letters else 0.1),
        grammar=grammar,
        logprobs=maybe(lambda: rng.choice((0, 1, 20)), None),
        prompt_logprobs=maybe(lambda: rng.choice((0, 2)), None),
    )
    stops = (*ENDS, *maybe(lambda: rng.sample(range(VOCABULARY), 200), []))
    prompt = shared[: rng.choice((0, 16, 40))] + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 30))]
    return Question(
        prompt,
        sampling,
        Limits(rng.randint(1, longest), stops, rng.choice((0, 0, 5, 20))),
        samples=rng.choice((1, 1, 1, 2, 3)),
        arrives=rng.randrange(LAST_ARRIVAL),
        handed_over=rng.random() < 0.4,
        died_after=maybe(lambda: rng.randint(1, 20), 0),
        released_at=maybe(lambda: rng.randrange(60), 1 << 30, 0.15),
    )


def _words(rng: random.Random, letters: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Draws bad words; of few letters, they are met."""
    return tuple(tuple(rng.choices(letters, k=rng.choice((2, 2, 3)))) for _ in range(12))
