"""Sequences get ready on a thread of their own: whoever waits for that holds up nobody, and is not forgotten."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from checkpoints.grammars import compiled
from contracts.messages.sampling import Limits, Sampling
from engine.executor import Executor
from engine.grammars import preparation
from engine.grammars.preparation import Preparation
from engine.start.load import LoadedEngine
from gateway.grammar.texts import of_choices
from tests.engine.grammars.answering import ENDS, PROMPT, TOKENIZER, Batch, grammar_sampling, masks_of, random_model
from tests.engine.test_golden import make_engine
from tests.waiting import DEADLINE_S

SLOW, QUICK = of_choices(["slow"]), of_choices(["quick", "quicker"])


class Gate:
    """Compiles as ever, but for grammars with the word "slow", which wait until the gate is open."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.compiled: list[str] = []

    def __call__(self, tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
        if "slow" in grammar:
            self.entered.set()
            assert self.open.wait(DEADLINE_S)
        self.compiled.append(grammar)
        return compiled(tokenizer, grammar)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate()
    monkeypatch.setattr("engine.grammars.follower.compiled", found)
    yield found
    found.open.set()


class Watched(Preparation):
    """Can be waited for."""

    def __init__(self) -> None:
        self.woken = threading.Semaphore(0)
        super().__init__(lambda: TOKENIZER, self.woken.release)
        assert self.woken.acquire(timeout=DEADLINE_S), "the tokenizer is read"

    def asks(self, sequence: int, grammar: str) -> bool:
        return self.ready(sequence, grammar, list(PROMPT), len(PROMPT))

    def waits(self) -> None:
        assert self.woken.acquire(timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("preparation") / "model")


@pytest.fixture(scope="module")
def engine(model: Path) -> LoadedEngine:
    return make_engine(model, cpu_backend="native", kv_memory=16 << 20, max_model_len=2048)


@pytest.mark.parametrize("output", [0, 1])
def test_others_go_on_while_a_grammar_is_compiled(output: int, gate: Gate, engine: LoadedEngine, model: Path) -> None:
    """A new prompt, or one that lands with a token: its prompt is computed, it is drawn when its grammar is there."""
    batch = Batch(engine, Executor(engine, constraints=masks_of(model)))
    quick = batch.ask(grammar_sampling(QUICK), Limits(50, ENDS))
    while not quick.emitted:
        assert batch.turn()
    free = batch.ask(Sampling(seed=1), Limits(400))
    first = TOKENIZER.tokenize_str("s")
    slow = batch.ask(grammar_sampling(SLOW), Limits(50, ENDS), first[:output])
    while free.emitted < 300:
        assert batch.turn()
    assert gate.entered.is_set() and slow.emitted == output
    assert slow.computed == len(PROMPT) + output - 1, "all but the row that is drawn from"
    gate.open.set()
    answers = batch.run()
    text = TOKENIZER.decode_str([token for token in slow.tokens[len(PROMPT) :] if token not in ENDS])
    assert text == "slow" and answers[-1].finish == "stop"


def test_what_ends_before_its_turn_is_not_compiled(gate: Gate) -> None:
    watched = Watched()
    assert not watched.asks(1, SLOW) and not watched.asks(2, of_choices(["cancelled"])) and not watched.asks(3, QUICK)
    assert gate.entered.wait(DEADLINE_S)
    watched.forget(2)
    watched.forget(1)
    gate.open.set()
    watched.waits()
    assert watched.asks(3, QUICK) and gate.compiled == [SLOW, QUICK]
    assert watched.known(1) is None, "nothing is kept of what ended meanwhile"


def test_so_many_are_prepared_at_once_and_the_others_ask_again(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "MAX_PREPARING_SEQUENCES", 2)
    watched = Watched()
    assert not any([watched.asks(1, SLOW), watched.asks(2, QUICK), watched.asks(3, QUICK)])
    gate.open.set()
    watched.waits()
    watched.waits()
    assert watched.asks(1, SLOW) and watched.asks(2, QUICK) and not watched.asks(3, QUICK)
    watched.waits()
    assert watched.asks(3, QUICK)
    assert gate.compiled == [SLOW, QUICK], "one grammar is compiled once"


def test_a_grammar_without_end_fails_alone(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is left to itself; those behind it are prepared by another."""
    watched = Watched()
    assert not watched.asks(1, SLOW) and not watched.asks(2, QUICK)
    assert gate.entered.wait(DEADLINE_S)
    monkeypatch.setattr(preparation, "PREPARATION_TIMEOUT_S", 0.0)
    assert watched.asks(1, SLOW), "its step will say why it fails"
    watched.waits()
    assert watched.known(2) is not None and watched.known(1) is None
    watched.forget(1)
    monkeypatch.setattr(preparation, "PREPARATION_TIMEOUT_S", DEADLINE_S)
    gate.open.set()
    assert not watched.asks(4, SLOW)
    watched.waits()
    assert watched.asks(4, SLOW)


def test_what_an_earlier_attempt_has_emitted_is_replayed_before_the_step(gate: Gate) -> None:
    gate.open.set()
    watched = Watched()
    tokens = [*PROMPT, *TOKENIZER.tokenize_str("qui")]
    assert not watched.ready(1, QUICK, tokens, len(PROMPT))
    watched.waits()
    follower = watched.known(1)
    assert follower is not None and follower.seen == len(tokens)
