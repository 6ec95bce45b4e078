"""Mixed steps that are recorded give the states of mixed steps that are not, in Triton's interpreter."""

import random
from collections.abc import Sequence

import pytest
import torch

from engine.backends.triton.graphs.decode_graphs import DecodeGraphs
from engine.engine import Engine
from engine.executor import Executor
from engine.plan import StepPlan, Work
from engine.start.load import LoadedEngine
from tests.engine.drive import GREEDY
from tests.engine.test_golden import make_engine
from tests.reference import build_model
from tests.variants import VARIANTS

pytestmark = pytest.mark.interpreted
BLOCK_TOKENS = 8


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedEngine, LoadedEngine]:
    """A model twice: with recorded steps, and with none."""
    config = VARIANTS["llama"]()
    config.num_hidden_layers = 2
    directory = build_model(tmp_path_factory.mktemp("mixed") / "model", config)
    sizes: dict[str, object] = {"max_sequences": 4, "max_batch_tokens": 64, "block_size": BLOCK_TOKENS}
    sizes |= {"speculation": "ngram", "speculative_tokens": 3}
    recorded = make_engine(directory, cpu_backend="triton", **sizes)
    return recorded, make_engine(directory, cpu_backend="triton", decode_graphs="off", **sizes)


class Texts:
    """Texts that grow from step to step, each with blocks of its own in every group."""

    def __init__(self, engine: Engine) -> None:
        self._random = random.Random(0)
        self._vocab = engine.model_config.vocab_size
        self._tables = [tuple(list(range(1 + 8 * text, 9 + 8 * text)) for _ in engine.pool.counts) for text in range(5)]
        self._lengths = [0] * 5
        self._steps = 0

    def step(self, *added: tuple[int, int], sampled: Sequence[int], guesses: Sequence[int] = ()) -> StepPlan:
        """Plans a step in which texts grow by numbers of tokens; `sampled` texts sample the next token.

        `guesses` are the numbers of draft tokens of the first texts, all of which are wrong.
        """
        works = []
        for (text, count), drafts in zip(added, [*guesses, *[0] * len(added)], strict=False):
            start, self._lengths[text] = self._lengths[text], self._lengths[text] + count
            tokens = [self._random.randrange(self._vocab) for _ in range(count + drafts)]
            used = -(-(self._lengths[text] + drafts) // BLOCK_TOKENS)
            tables = tuple(table[:used] for table in self._tables[text])
            sampling = GREEDY if text in sampled else None
            works.append(Work(text, start, tokens, tables, sampling, proposed=tuple(tokens[count:])))
        self._steps += 1
        return StepPlan(self._steps, works)


def test_recorded_mixed_steps_give_the_same_states(engines: tuple[LoadedEngine, LoadedEngine]) -> None:
    recorded, plain = map(Executor, engines)
    texts = Texts(engines[0])
    plans = [
        texts.step((0, 5), (1, 19), sampled=[0]),  # chunks alone, the second of a longer prompt
        texts.step((0, 1), (1, 7), (2, 3), sampled=[0, 1, 2]),
        texts.step((2, 1), (0, 1), (1, 1), (3, 20), sampled=[0, 1, 2]),  # in another order, none sampled of the chunk
        texts.step((3, 9), sampled=[]),  # no row reaches the head
        texts.step((1, 1), (4, 13), (3, 1), sampled=[1, 3, 4]),  # a decode behind a chunk
        texts.step((1, 1), (2, 1), (3, 1), (4, 12), sampled=[1, 2, 3], guesses=[3, 0, 1]),  # draft tokens to verify
        texts.step((3, 1), (1, 1), (2, 1), (4, 2), sampled=[1, 2, 3, 4], guesses=[2, 3, 3]),
        texts.step((4, 1), (1, 1), (0, 6), (2, 1), sampled=[0, 1, 2, 4], guesses=[1, 6, 0, 2]),  # more than recorded
    ]
    steps = engines[0].decode_steps
    assert isinstance(steps, DecodeGraphs)
    for plan in plans:
        assert steps.serves(plan)
        with torch.inference_mode():
            states = [executor._logits(plan, None, executor._is_recorded(plan)) for executor in (plain, recorded)]
        (expected, expected_logits, _), (found, logits, _) = states
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)


def test_what_is_not_recorded_runs_as_before(engines: tuple[LoadedEngine, LoadedEngine]) -> None:
    """Steps with more tokens, chunks or decodes than a recording has room for, and with scores of prompts."""
    engine, _ = engines
    steps = engine.decode_steps
    assert isinstance(steps, DecodeGraphs)
    texts = Texts(engine)
    assert steps.serves(texts.step((0, 64), sampled=[]))
    assert not steps.serves(texts.step((1, 60), (2, 5), sampled=[]))
    tables = tuple([1] for _ in engine.pool.counts)
    assert not steps.serves(StepPlan(0, [Work(text, 0, [1, 2], tables) for text in range(9)]))
    decodes = [Work(text, 3, [1], tables, GREEDY) for text in range(5)]
    assert not steps.serves(StepPlan(0, [*decodes, Work(9, 0, [1, 2], tables)]))
