"""Sequences that come, wait and go, with tokens that the host does not know yet: every adjuster makes the same bits."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor

from contracts.messages.sampling import Sampling
from engine.backends.adjuster import FORBIDDEN_LOGIT
from engine.constraints import Masks
from engine.model.batch import Sampled
from engine.plan import PENDING_TOKEN, Work
from engine.speculation.verify.verification import draft_paths, works_by_row
from tests.engine.backends.adjusters import ADJUSTERS

STEP_COUNT = 16
MAX_TEXTS_PER_STEP = 11
"""Texts in a step: fewer than there are, so that rows on a device are taken from each other."""
DIFFERENT_TOKENS = 12
"""Different tokens in texts: so they come again, and bad words come to be."""


@dataclass(eq=False)
class Text:
    number: int
    sampling: Sampling
    prompt: list[int]
    known: list[int] = field(init=False)  # what the scheduler's list has
    drawn: list[int] = field(default_factory=list)  # all of its output
    minimum: int = 0

    def __post_init__(self) -> None:
        self.known = list(self.prompt)


def make_text(draw: random.Random, number: int, vocab: int) -> Text:
    """Asks for a few things, or for everything."""

    def often(value: object, default: object) -> object:
        return value if draw.random() < 0.5 else default

    ids = range(min(DIFFERENT_TOKENS, vocab))
    prompt = draw.choices(range(vocab), k=draw.randint(1, 20)) + draw.choices(ids, k=3)
    across = tuple((prompt[-1], token, 1) for token in ids)  # none of these has its first token in the output
    words = tuple(tuple(draw.choices(ids, k=draw.randint(1, 4))) for _ in range(draw.choice((0, 3, 60))))
    values = {
        "repetition_penalty": often(draw.uniform(0.5, 2), 1.0),
        "presence_penalty": often(draw.uniform(-2, 2), 0.0),
        "frequency_penalty": often(draw.uniform(-2, 2), 0.0),
        "logit_bias": often(tuple((draw.randrange(vocab + 2), draw.uniform(-9, 9)) for _ in range(5)), ()),
        "bad_words": often((*words, *across, (vocab, 1), (1, vocab + 5)), ()),
        "allowed_token_ids": tuple(draw.sample(range(vocab), vocab // 2)) if draw.random() < 0.2 else None,
        "grammar": "one" if draw.random() < 0.2 else "",
    }
    sampling = Sampling(number, **values)  # type: ignore[arg-type]
    return Text(number, sampling, prompt, minimum=draw.choice((0, 0, 3)))


def judged(row: Tensor, text: Text, banned: tuple[int, ...], allowed: set[int] | None) -> Tensor:
    """Says token by token, from the formulas, what becomes of a row whose text is all known."""
    sampling, x = text.sampling, row.clone()
    for token, bias in merged(sampling).items():
        if token < len(x):
            x[token] += bias
    for token in {*text.prompt, *text.drawn} if sampling.repetition_penalty != 1 else {*text.drawn}:
        count = text.drawn.count(token)
        penalty = torch.tensor(sampling.repetition_penalty)
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
        x[token] -= torch.tensor(float(count)) * torch.tensor(sampling.frequency_penalty)
        x[token] -= torch.tensor(sampling.presence_penalty if count else 0.0)
    may = {*range(len(x))}
    if sampling.allowed_token_ids is not None:
        may &= {*sampling.allowed_token_ids}
    if allowed is not None:
        may &= allowed
    if allowed is None or may - {*banned}:
        may -= {*banned}
    for *before, last in sampling.bad_words:
        if text.drawn[len(text.drawn) - len(before) :] == before:
            may -= {last}
    for token in {*range(len(x))} - may:
        x[token] = FORBIDDEN_LOGIT if x[token].isfinite() else x[token]
    return x


def merged(sampling: Sampling) -> dict[int, float]:
    found: dict[int, float] = {}
    for token, bias in sampling.logit_bias:
        found[token] = found.get(token, 0.0) + bias
    return found


class Steps:
    """Drives all adjusters and the judge through the same steps."""

    def __init__(self, seed: int, vocab: int) -> None:
        self.draw, self.vocab = random.Random(seed), vocab
        self.adjusters = {name: make() for name, make in ADJUSTERS.items()}
        self.texts = [make_text(self.draw, number, vocab) for number in range(1, 40)]
        self.before: Sampled | None = None
        self.waiting: dict[int, tuple[Text, int]] = {}  # what the step before has drawn and nobody has collected
        self.pending = 0
        self.members: list[Text] = []

    def step(self) -> None:
        draw = self.draw
        lately = [text for text in self.texts if text.number in self.waiting and draw.random() < 0.8]
        members = lately + draw.sample([text for text in self.texts if text not in lately], draw.choice((1, 3, 7)))
        draw.shuffle(members)
        if draw.random() < 0.4:
            members = self.members  # as they were: what lasts on a device is used again
        self.members = members = members[:MAX_TEXTS_PER_STEP] or self.texts[:1]
        going_on = {text.number for text in members if draw.random() < 0.9 and not text.sampling.grammar}
        for number in [number for number in self.waiting if number not in going_on]:
            self.collect(number)
        for text in draw.sample(self.texts, 5):
            if text.number not in self.waiting:  # a grammar may allow one continuation only
                text.drawn += [3, 3, 4]
                text.known += [3, 3, 4]
        works, masks = [], {}
        for row, text in enumerate(members):
            work, allowed = self.work(text)
            works.append(work)
            if allowed is not None:
                masks[row] = allowed
        logits = torch.randn((len(works), self.vocab), generator=torch.Generator().manual_seed(draw.getrandbits(30)))
        logits[draw.randrange(len(works)), draw.randrange(self.vocab)] = draw.choice((torch.nan, torch.inf, -torch.inf))
        logits[:, draw.randrange(self.vocab)] = -0.0
        rows = zip(logits, members, works, strict=True)
        expected = torch.stack(
            [judged(row, text, work.banned, masks.get(at)) for at, (row, text, work) in enumerate(rows)]
        )
        packed = Masks([*masks], np.stack([bits(each, self.vocab) for each in masks.values()])) if masks else None
        for name, adjuster in self.adjusters.items():
            found = adjuster.adjust(logits.clone(), works, self.before, packed)
            same = (found.view(torch.int32) == expected.view(torch.int32)) | (found.isnan() & expected.isnan())
            assert same.all(), f"{name}: {(~same).nonzero().tolist()}"
        for number in [*self.waiting]:
            self.collect(number)
        self.sample(members, works)

    def work(self, text: Text) -> tuple[Work, set[int] | None]:
        pending = len(text.drawn) > len(text.known) - len(text.prompt)
        self.pending += pending
        index, sampling = len(text.drawn), text.sampling
        work = Work(
            text.number,
            len(text.prompt) + index - 1,
            [PENDING_TOKEN] if pending else text.known[-1:],
            ([1],),
            sampling,
            (0,) if index or self.draw.random() < 0.5 else (0, 1, 2),
            index,
            text.known if sampling.looks_back else None,
            len(text.prompt),
            (0, 2, self.vocab + 1) if index < text.minimum else (),
        )
        if not sampling.grammar:
            return work, None
        ends = self.draw.random() < 0.5
        return work, {0} if ends else {*self.draw.sample(range(self.vocab), self.vocab // 2)}

    def sample(self, members: list[Text], works: list[Work]) -> None:
        tokens: list[int] = []
        for text, work in zip(members, works, strict=True):
            drawn = self.draw.choices(range(min(DIFFERENT_TOKENS, self.vocab)), k=len(work.samples))
            text.drawn.append(drawn[0])
            self.waiting[text.number] = text, drawn[0]
            if len(drawn) > 1:  # its branches begin when the host knows their tokens
                self.collect(text.number)
            tokens += drawn
        self.before = Sampled(torch.tensor(tokens), works)

    def collect(self, number: int) -> None:
        text, token = self.waiting.pop(number)
        text.known.append(token)


def bits(tokens: set[int], vocab: int) -> NDArray[np.int32]:
    words = np.zeros(-(-vocab // 32), np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words.view(np.int32)


@pytest.mark.parametrize(("vocab", "seeds"), [(13, 3), (67, 3), (257, 2), (1056, 1)])
def test_all_adjusters_make_the_bits_of_the_formulas(vocab: int, seeds: int) -> None:
    for seed in range(seeds):
        steps = Steps(seed, vocab)
        for _ in range(STEP_COUNT):
            steps.step()
        assert steps.pending > STEP_COUNT


@pytest.mark.parametrize("name", ADJUSTERS)
def test_rows_of_guesses_are_those_of_texts_with_them(name: str) -> None:
    """Step after step, whatever came of the guesses; other texts, with guesses too, are in the same steps."""
    draw, adjuster, vocab = random.Random(7), ADJUSTERS[name](), 40
    texts = [make_text(draw, number, vocab) for number in range(1, 5)]
    asked = dict(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=-0.6, bad_words=((3, 5), (4,)))
    for text in texts[:2]:
        text.sampling = Sampling(text.number, **asked)  # type: ignore[arg-type]
    for _ in range(6):
        works, rows = [], []
        for text in texts:
            guesses = tuple(draw.choices(range(6), k=draw.choice((0, 3, 5))))
            parents = (-1, -1, 0, 2, 1)[: len(guesses)]
            index = len(text.known) - len(text.prompt)
            known = text.known if text.sampling.looks_back else None
            ids = [text.known[-1], *guesses]
            work = Work(text.number, 9, ids, ([1],), text.sampling, (0,), index, known, len(text.prompt))
            works.append(structs.replace(work, proposed=guesses, parents=parents))
            for way in ((), *draft_paths(works[-1])):
                rows.append(Text(text.number, text.sampling, text.prompt))
                rows[-1].drawn = [*text.known[len(text.prompt) :], *way]
        logits = torch.randn((len(rows), vocab), generator=torch.Generator().manual_seed(draw.getrandbits(30)))
        expected = torch.stack([judged(row, text, (), None) for row, text in zip(logits, rows, strict=True)])
        assert torch.equal(adjuster.adjust(logits.clone(), works_by_row(works), None, None), expected)
        for text in texts:
            text.known += draw.choices(range(6), k=draw.randint(1, 4))
