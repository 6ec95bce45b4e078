"""Guesses change nothing that is drawn: tokens and scores are those without any, whatever is guessed and asked for."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import BlockManager
from engine.executor import Executor
from engine.plan import Proposal, Work
from engine.schedule.speculation import Speculation
from engine.speculation.proposers.proposer import DraftedSequence
from engine.speculation.verify.verification import (
    DRAWN,
    NONE_LEFT,
    NOT_FINITE,
    accepted_drafts,
    judged_drafts,
    verified_rows,
)
from engine.start.load import LoadedEngine
from gateway.grammar.texts import of_json_schema, of_regex
from tests.engine.grammars.answering import ENDS, PROMPT, Answer, Batch, grammar_sampling, masks_of, random_model
from tests.engine.grammars.schemas import SCHEMAS
from tests.engine.test_golden import BACKENDS, make_engine

TOKENS = 40
Answers = list[Answer]
MAX_DIFFERENCE = 1e-4  # of a log-probability; sums of fp32 may be taken in another order
GREEDY: dict[str, Any] = {"seed": 0, "temperature": 0.0}
WORDS = ((5,), (17, 300))
ASKED: dict[str, tuple[Sampling, Limits]] = {
    "greedy": (Sampling(**GREEDY), Limits(TOKENS)),
    "drawn": (Sampling(seed=1), Limits(TOKENS)),
    "filtered": (Sampling(seed=2, temperature=0.7, top_k=40, top_p=0.9, min_p=0.01), Limits(TOKENS)),
    "scored": (Sampling(seed=3, logprobs=2), Limits(TOKENS)),
    "penalized": (Sampling(seed=4, repetition_penalty=1.3, presence_penalty=0.5, logprobs=0), Limits(TOKENS)),
    "penalized greedy": (Sampling(**GREEDY, frequency_penalty=0.7), Limits(TOKENS)),
    "bad words": (Sampling(seed=5, bad_words=WORDS, logit_bias=((300, 6.0), (17, 6.0))), Limits(TOKENS)),
    "a least length": (Sampling(seed=6, logit_bias=tuple((end, 8.0) for end in ENDS)), Limits(TOKENS, ENDS, 7)),
    "allowed": (Sampling(seed=7, allowed_token_ids=tuple(range(50, 90))), Limits(TOKENS)),
    "regex": (grammar_sampling(of_regex("[a-z]{3,9}( [a-z]{3,9}){3,5}!"), seed=8), Limits(TOKENS, ENDS)),
    "a text that may go on": (
        Sampling(seed=10, grammar=of_regex("[a-z]{3,9}( [a-z]+)*"), logit_bias=((ENDS[0], 5.0),)),
        Limits(TOKENS, ENDS),
    ),
    "schema": (grammar_sampling(of_json_schema(SCHEMAS["address"]), seed=9), Limits(200, ENDS)),
    "schema, greedy": (grammar_sampling(of_json_schema(SCHEMAS["tree"]), temperature=0.0), Limits(200, ENDS)),
}


TREE = (-1, 0, -1, 1, 2, 0, 4)
TREES = 41
"""Blocks where guesses branch: some are preempted."""
WAYS = ((0, 1, 3), (2, 4, 6), (0, 5))


class Knowing:
    """A proposer that was told the answers, by the number of their sequence, and gets some of them wrong."""

    in_engine = False

    def __init__(self, answers: list[Answer], wrong: int, *, branching: bool = False) -> None:
        """Every `wrong`-th guess is. `branching`: right ones stand on some way through a tree."""
        self._texts = [[*PROMPT, *answer.tokens] for answer in answers]
        self._wrong = wrong
        self._branching = branching
        self.guesses = 0

    def propose(self, sequence: DraftedSequence, max_drafts: int) -> Proposal:
        length = len(sequence.tokens)
        found = self._texts[sequence.id - 1][length : length + max_drafts]
        self.guesses += len(found)
        guesses = [token ^ ((length + place) % self._wrong == 0) for place, token in enumerate(found)]
        return self._tree(guesses, max_drafts, WAYS[length % len(WAYS)]) if self._branching else Proposal(guesses)

    def ended(self, sequence: DraftedSequence) -> None:
        """What was said is known."""

    def _tree(self, guesses: list[int], max_drafts: int, way: tuple[int, ...]) -> Proposal:
        """Puts the guesses on one way through a tree, and tokens that differ from their siblings on the others."""
        on_way = dict(zip(way, guesses, strict=False))
        tokens = [on_way.get(guess, 2 + guess) for guess in range(max_drafts)]
        for guess, parent in enumerate(TREE[:max_drafts]):
            siblings = {
                token for token, of in zip(tokens, TREE, strict=False) if of == parent and token != tokens[guess]
            }
            if guess not in on_way and tokens[guess] in {on_way.get(each) for each in way}:
                tokens[guess] = next(token for token in range(40) if token not in siblings | set(guesses))
        return Proposal(tokens, parents=TREE[:max_drafts])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("verification") / "model")


def answers(
    engine: LoadedEngine, model: Path, proposer: Knowing | None, max_drafts: int = 0, blocks: int = 0
) -> list[Answer]:
    """Asks for all at once; with few `blocks`, some of them are preempted."""

    def speculation(manager: BlockManager, proposer: Knowing) -> Speculation:
        return Speculation(manager, proposer, max_drafts)

    guessing = partial(speculation, proposer=proposer) if proposer is not None else None
    batch = Batch(engine, Executor(engine, constraints=masks_of(model)), blocks, speculation=guessing)
    asked = [batch.ask(sampling, limits) for sampling, limits in ASKED.values()]
    batch.prepare([each for each in asked if each.sampling.grammar])
    return batch.run()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_drawn_is_what_is_drawn_without_guesses(model: Path, backend: str) -> None:
    engine = make_engine(model, cpu_backend=backend, kv_memory=16 << 20, max_model_len=512)
    alone = answers(engine, model, None)
    assert not any(answer.failed for answer in alone)
    for max_drafts, wrong, blocks in ((1, 99, 0), (4, 3, 0), (7, 99, 0), (7, 5, 40), (7, 4, TREES)):
        proposer = Knowing(alone, wrong, branching=blocks == TREES)
        found = answers(engine, model, proposer, max_drafts, blocks)
        assert proposer.guesses > 100
        for name, this, that in zip(ASKED, found, alone, strict=True):
            assert (this.tokens, this.finish, this.failed) == (that.tokens, that.finish, that.failed), name
            assert this.steps <= that.steps, name
            assert len(this.scores) == len(that.scores) in (0, len(that.tokens)), name
            for one, other in zip(this.scores, that.scores, strict=True):
                assert abs(one.logprob - other.logprob) < MAX_DIFFERENCE, name
                assert abs(one.rank - other.rank) <= (blocks == TREES), name  # of a tree's, the last bits may differ
                assert [token for token, _ in one.top] == [token for token, _ in other.top], name
    right = sum(answer.steps for answer in answers(engine, model, Knowing(alone, 999), 7))
    assert right < sum(answer.steps for answer in alone) / 2, "guesses that are right save steps"


def test_draws_count_up_to_the_first_that_was_not_guessed() -> None:
    work = Work(1, 4, [9, 5, 6, 7], ([1],), Sampling(seed=0), proposed=(5, 6, 7))
    fine = [DRAWN] * 4
    assert verified_rows(work, [5, 6, 7, 8], fine) == ([0, 1, 2, 3], DRAWN)
    assert verified_rows(work, [5, 1, 7, 8], fine) == ([0, 1], DRAWN)
    assert verified_rows(work, [1, 6, 7, 8], fine) == ([0], DRAWN)
    assert verified_rows(work, [1, 6, 7, 8], [DRAWN, NOT_FINITE, NOT_FINITE, NONE_LEFT]) == ([0], DRAWN)
    assert verified_rows(work, [5, 6, 7, 8], [DRAWN, DRAWN, NOT_FINITE, DRAWN]) == ([], NOT_FINITE)
    assert verified_rows(work, [5, 6, 7, 8], [DRAWN, DRAWN, NONE_LEFT, DRAWN]) == ([0, 1], DRAWN)
    assert verified_rows(work, [5, 6, 7, 8], [NONE_LEFT, *fine[1:]]) == ([], NONE_LEFT)


def on_the_way(parents: Sequence[int], proposed: Sequence[int], drawn_at: Callable[[int, int], int]) -> list[int]:
    """Follows the guesses that come true, from the last own token: a reference for the code, which looks at each once.

    `drawn_at(guess, place)` gives the token behind a guess (-1: the last own token) when `place` guesses came true.
    """
    found, at = list[int](), -1
    while True:
        token = drawn_at(at, len(found))
        children = (guess for guess, parent in enumerate(parents) if parent == at and proposed[guess] == token)
        at = next(children, -2)
        if at == -2:
            return found
        found.append(at)


@st.composite
def trees(draw: st.DrawFn) -> Work:
    """Guesses of few different tokens, so that a wrong branch often guesses what comes later."""
    count = draw(st.integers(1, 8))
    parents = tuple(draw(st.integers(-1, guess - 1)) for guess in range(count))
    taken: set[tuple[int, int]] = set()
    proposed = []
    for parent in parents:  # siblings differ, as a proposer's do
        token = draw(st.sampled_from([token for token in range(9) if (parent, token) not in taken]))
        taken.add((parent, token))
        proposed.append(token)
    return Work(1, 4, [9, *proposed], ([1],), Sampling(seed=0), proposed=tuple(proposed), parents=parents)


@given(trees(), st.lists(st.integers(0, 3), min_size=9, max_size=9))
@example(
    Work(1, 4, [9, 7, 9], ([1],), Sampling(seed=0), proposed=(7, 9), parents=(-1, -1)), [7, 9, 0, 0, 0, 0, 0, 0, 0]
)
def test_no_guess_behind_a_rejected_branch_comes(work: Work, tokens: list[int]) -> None:
    """Siblings 7 and 9, with 7 drawn first and 9 behind it: the guess 9 stands behind another text than the draw 9."""
    tokens = tokens[: 1 + len(work.proposed)]  # one drawn from each row
    way = on_the_way(work.parents, work.proposed, lambda guess, _: tokens[guess + 1])
    rows, _ = verified_rows(work, tokens, [DRAWN] * len(tokens))
    assert rows == [0, *(guess + 1 for guess in way)]
    assert accepted_drafts(work, [tokens[row] for row in rows]) == way


@given(trees(), st.lists(st.integers(0, 8), max_size=9))
@example(Work(1, 4, [9, 7, 9], ([1],), Sampling(seed=0), proposed=(7, 9), parents=(-1, -1)), [7, 9])
def test_the_guesses_that_came_true_are_followed_through_the_text(work: Work, came: list[int]) -> None:
    """What came may be longer or shorter than what was guessed; a guess is judged behind its own text only."""
    way = on_the_way(work.parents, work.proposed, lambda _, place: came[place] if place < len(came) else -1)
    assert accepted_drafts(work, came) == way
    assert [guess for guess, right in judged_drafts(work, way) if right] == way
    told = {-1, *way}
    assert {guess for guess, _ in judged_drafts(work, way)} <= {
        guess for guess, parent in enumerate(work.parents) if parent in told
    }
