"""How grammars meet the engine's steps: forced tokens, ends, preemption, steps in flight, and what fails."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from llguidance import LLTokenizer

from checkpoints.grammars import compiled, read_tokenizer
from contracts.ids import AttemptKey
from contracts.messages.gateway import REASON_GRAMMAR_FAILED
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.executor import Executor
from engine.grammars import follower, preparation
from engine.plan import Work
from engine.schedule.progress import may_do_better, reason_of
from engine.schedule.sequence import Sequence
from engine.start.load import LoadedEngine
from gateway.grammar.texts import of_choices, of_json_schema, of_regex
from tests.engine.grammars.answering import (
    ENDS,
    PROMPT,
    TOKENIZER,
    VOCABULARY,
    Answer,
    Batch,
    WakingMasks,
    ask_all,
    grammar_sampling,
    masks_of,
    random_model,
)
from tests.engine.grammars.schemas import SCHEMAS
from tests.engine.test_golden import make_engine

AMBIGUOUS = 'start: e\ne: e e e | e e | /./ | ""'
SENTENCE = "The quick brown fox jumps over the lazy dog."
FORMS = [of_json_schema(SCHEMAS[name]) for name in ("address", "tree", "wide", "extraction", "one of references")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("grammars") / "model")


@pytest.fixture(scope="module")
def engine(model: Path) -> LoadedEngine:
    return make_engine(model, cpu_backend="native", kv_memory=16 << 20, max_model_len=2048)


def answer(engine: LoadedEngine, model: Path, sampling: Sampling, limits: Limits | None = None) -> Answer:
    batch = Batch(engine, Executor(engine, constraints=masks_of(model)))
    batch.ask(sampling, limits or Limits(1500, ENDS))
    return batch.run()[0]


def test_what_can_only_follow_comes_at_once_with_its_end(engine: LoadedEngine, model: Path) -> None:
    """One step instead of one for each token; not where somebody asks how likely each token was."""
    grammar = of_choices([SENTENCE])
    forced = answer(engine, model, grammar_sampling(grammar))
    assert (forced.text, forced.finish, forced.steps) == (SENTENCE, "stop", 1)
    assert len(forced.tokens) > 5 and forced.tokens[-1] in ENDS
    drawn = answer(engine, model, replace_sampling(grammar_sampling(grammar), logprobs=0))
    assert (drawn.text, drawn.finish, drawn.steps) == (SENTENCE, "stop", len(drawn.tokens))
    mixed = answer(engine, model, grammar_sampling(FORMS[0]))
    assert mixed.finish == "stop" and mixed.steps < len(mixed.tokens) * 0.8


def replace_sampling(sampling: Sampling, **changes: object) -> Sampling:
    fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return Sampling(**{**fields, **changes})


def test_forced_runs_longer_than_a_step_takes_go_on_in_the_next(
    engine: LoadedEngine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "MAX_FORCED_TOKENS", 3)
    found = answer(engine, model, grammar_sampling(of_choices([SENTENCE])))
    assert (found.text, found.finish) == (SENTENCE, "stop")
    assert found.steps == -(-(len(found.tokens) - 1) // 3)


@pytest.mark.parametrize("kept", [1, 3, 5])
def test_an_answer_ends_inside_of_what_has_to_follow(kept: int, engine: LoadedEngine, model: Path) -> None:
    """Ends it by its limit of tokens, or by a token that the client has named."""
    sampling = grammar_sampling(of_choices([SENTENCE]))
    whole = answer(engine, model, sampling).tokens
    cut = answer(engine, model, sampling, Limits(kept, ENDS))
    assert (cut.tokens, cut.finish) == (whole[:kept], "length")
    stopped = answer(engine, model, sampling, Limits(100, (*ENDS, whole[kept])))
    assert (stopped.tokens, stopped.finish) == (whole[: kept + 1], "stop")


def test_a_complete_text_ends_though_more_was_asked_for(engine: LoadedEngine, model: Path) -> None:
    """`min_tokens` bans the end, and gives way where nothing else is left; where something is, it holds."""
    for logprobs in (None, 0):
        sampling = replace_sampling(grammar_sampling(of_choices(["yes", "no"])), logprobs=logprobs)
        found = answer(engine, model, sampling, Limits(50, ENDS, 30))
        assert found.text in ("yes", "no") and found.finish == "stop"
    longer = answer(engine, model, grammar_sampling(of_regex("[a-z ]+")), Limits(60, ENDS, 30))
    assert len(longer.tokens) >= 30


def test_what_nobody_ends_is_cut_at_its_limit(engine: LoadedEngine, model: Path) -> None:
    """A job that names no end gets the end-of-text token as often as it likes, and nothing else."""
    found = answer(engine, model, grammar_sampling(of_choices(["yes"])), Limits(10))
    assert (found.text, found.finish, len(found.tokens)) == ("yes", "length", 10)


@pytest.mark.parametrize("depth", [1, 2])
def test_answers_do_not_depend_on_company_preemption_or_steps_in_flight(
    depth: int, engine: LoadedEngine, model: Path
) -> None:
    """Sequences with and without grammars, in a pool of few blocks."""
    asked = [grammar_sampling(form, seed) for seed in range(3) for form in FORMS]
    free = [Sampling(seed=seed) for seed in range(4)]
    alone = [answer(engine, model, sampling, Limits(600, ENDS)).tokens for sampling in asked]
    alone += [answer(engine, model, sampling, Limits(80, ENDS)).tokens for sampling in free]
    executor = Executor(replace(engine, launch_depth=depth), constraints=masks_of(model))
    batch = Batch(executor.engine, executor, blocks=50)
    constrained = [batch.ask(sampling, Limits(600, ENDS)) for sampling in asked]
    for sampling in free:
        batch.ask(sampling, Limits(80, ENDS))
    batch.prepare(constrained)
    assert [found.tokens for found in batch.run()] == alone
    assert batch.scheduler.load().preemptions > 3


@pytest.mark.parametrize("form", FORMS)
def test_an_attempt_goes_on_where_the_one_before_was_cut(form: str, engine: LoadedEngine, model: Path) -> None:
    """A worker that has never seen the sequence comes to the same state from its tokens: at each of them."""
    sampling = grammar_sampling(form, seed=3)
    whole = answer(engine, model, sampling)
    assert whole.finish == "stop"
    batch = Batch(engine, Executor(engine, constraints=masks_of(model)))
    cuts = range(1, len(whole.tokens), max(1, len(whole.tokens) // 40))
    for cut in cuts:
        batch.ask(sampling, Limits(1500, ENDS), whole.tokens[:cut])
    texts = []
    for cut, found in zip(cuts, batch.run(), strict=True):
        assert found.finish == "stop"
        texts.append(Answer(whole.tokens[:cut] + found.tokens, None, "", 0).text)
    assert texts == [whole.text] * len(texts)


def test_samples_of_one_prompt_begin_under_the_grammar(engine: LoadedEngine, model: Path) -> None:
    """They are drawn from one row, whose mask holds for all, and go their own ways."""
    sampling = grammar_sampling(FORMS[1], temperature=1.5)
    batch = Batch(engine, Executor(engine, constraints=masks_of(model)))
    samples = [
        Sequence(AttemptKey("r", number, 1), "gateway", Prompt(PROMPT, len(PROMPT)), 1e9, sampling, Limits(1500, ENDS))
        for number in range(6)
    ]
    batch.scheduler.add(samples[0], samples[1:])
    while batch.turn():
        pass
    texts = [Answer([*each.tokens[len(PROMPT) :]], None, "", 0).text for each in samples]
    assert all(each.tokens[-1] in ENDS for each in samples) and len(set(texts)) > 1
    for each in samples:
        found = follower.GrammarFollower(compiled(TOKENIZER, FORMS[1]), each_text(each), len(PROMPT), ENDS[0])
        found.catch_up()
        assert found.matcher.is_accepting()


def each_text(sequence: Sequence) -> list[int]:
    """A sequence's tokens but the one that ends it."""
    return [token for token in sequence.tokens if token not in ENDS]


def test_the_gpus_operators_keep_to_grammars_too(model: Path) -> None:
    """In Triton's interpreter, with two steps in flight: some of one token each, some with forced ones."""
    engine = make_engine(model, cpu_backend="triton", max_sequences=4, max_batch_tokens=64)
    grammars = [of_choices([SENTENCE]), of_regex("[a-z]{3}[0-9]{2}"), of_json_schema(SCHEMAS["enum"])]
    answers = ask_all(replace(engine, launch_depth=2), model, [grammar_sampling(each) for each in grammars], 40)
    assert [each.finish for each in answers] == ["stop"] * 3
    assert answers[0].text == SENTENCE and answers[0].steps == 1
    assert answers[1].text[:3].isalpha() and answers[1].text[3:].isdigit() and len(answers[1].text) == 5
    assert answers[2].text in ('"red"', '"green"', '"blue"')


def test_a_grammar_that_cannot_go_on_ends_its_sequence_and_no_other(engine: LoadedEngine, model: Path) -> None:
    """One that cannot be compiled, one whose output does not fit, and one that is ambiguous without end."""
    good = grammar_sampling(FORMS[0])
    alone = answer(engine, model, good)
    batch = Batch(engine, Executor(engine, constraints=masks_of(model)))
    batch.ask(good, Limits(1500, ENDS))
    batch.ask(grammar_sampling("start: nothing"), Limits(50, ENDS))
    batch.ask(grammar_sampling(FORMS[0]), Limits(50, ENDS), output=[5, 5, 5])
    batch.ask(grammar_sampling(AMBIGUOUS, bias=0), Limits(100, ENDS, 100))
    found, *failed = batch.run()
    assert found == alone
    for each, words in zip(failed, ["unknown name", "does not fit", "Too many items"], strict=True):
        assert each.finish is None and each.failed.startswith("grammar: ") and words in each.failed
        assert reason_of(each.failed) == REASON_GRAMMAR_FAILED and not may_do_better(each.failed)


def test_a_model_without_a_tokenizer_says_so(engine: LoadedEngine, model: Path, tmp_path: Path) -> None:
    batch = Batch(engine, Executor(engine, constraints=masks_of(tmp_path)))
    batch.ask(grammar_sampling(FORMS[0]), Limits(50, ENDS))
    batch.ask(Sampling(seed=1), Limits(5))
    constrained, free = batch.run()
    assert "has no tokenizer.json" in constrained.failed and len(free.tokens) == 5
    assert may_do_better(constrained.failed) and reason_of(constrained.failed) == "engine"


def test_masks_that_do_not_come_cost_their_sequences_only(
    engine: LoadedEngine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that hangs is left to itself; the next request has another."""
    hanging = threading.Event()

    def hang(tokenizer: object, grammar: str) -> object:
        if "hang" in grammar:
            hanging.wait(60)
        return compiled(tokenizer, grammar)  # type: ignore[arg-type]

    monkeypatch.setattr("engine.grammars.follower.compiled", hang)
    constraints = masks_of(model)
    batch = Batch(engine, Executor(engine, constraints=constraints))
    batch.ask(grammar_sampling(FORMS[0]), Limits(1500, ENDS))
    assert batch.run()[0].finish == "stop", "the tokenizer is read"
    monkeypatch.setattr(preparation, "PREPARATION_TIMEOUT_S", 0.1)
    batch.ask(grammar_sampling(of_choices(["hang"])), Limits(50, ENDS))
    batch.ask(Sampling(seed=1), Limits(5))
    _, stuck, free = batch.run()
    assert "was not compiled after" in stuck.failed and may_do_better(stuck.failed) and len(free.tokens) == 5
    monkeypatch.setattr(preparation, "PREPARATION_TIMEOUT_S", 10.0)
    batch.ask(grammar_sampling(FORMS[1]), Limits(1500, ENDS))
    assert batch.run()[-1].finish == "stop"
    hanging.set()


class Panic(BaseException):
    """Is to Python what a panic of llguidance is: no Exception."""


def test_a_panic_costs_the_sequences_of_its_step_and_not_the_thread(
    engine: LoadedEngine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a thread that is dead: neither this step's others, nor the next request."""

    def panic(tokenizer: object, grammar: str) -> object:
        if "panic" in grammar:
            raise Panic("quoting the output")
        return compiled(tokenizer, grammar)  # type: ignore[arg-type]

    monkeypatch.setattr("engine.grammars.follower.compiled", panic)
    monkeypatch.setattr(preparation, "PREPARATION_TIMEOUT_S", 60.0)
    batch = Batch(engine, Executor(engine, constraints=masks_of(model)))
    batch.ask(grammar_sampling(of_choices(["panic"])), Limits(50, ENDS))
    batch.ask(Sampling(seed=1), Limits(5))
    failed, free = batch.run()
    assert failed.failed == "constrained output: its grammar could not be compiled (Panic)" and len(free.tokens) == 5
    batch.ask(grammar_sampling(FORMS[1]), Limits(1500, ENDS))
    assert batch.run()[-1].finish == "stop"


def test_a_tokenizer_that_nobody_has_thought_of_fails_at_once(
    engine: LoadedEngine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "PREPARATION_TIMEOUT_S", 60.0)

    def read() -> LLTokenizer:
        raise KeyError("id")

    constraints = WakingMasks(read)
    batch = Batch(engine, Executor(engine, constraints=constraints))
    batch.ask(grammar_sampling(FORMS[0]), Limits(50, ENDS))
    assert batch.run()[0].failed == "constrained output: the tokenizer cannot be used (KeyError)"


def test_penalties_count_what_was_not_drawn(engine: LoadedEngine, model: Path) -> None:
    """Counts that are kept from step to step agree with counts from all tokens, forced ones among them."""
    penal = {"frequency_penalty": 0.8, "presence_penalty": 0.3, "repetition_penalty": 1.2}
    asked = [replace_sampling(grammar_sampling(form, seed), **penal) for form in FORMS for seed in range(2)]
    kept = [each.tokens for each in ask_all(engine, model, asked, 1500)]
    again = []
    for sampling, tokens in zip(asked, kept, strict=True):
        for cut in (len(tokens) // 3, len(tokens) // 2):
            batch = Batch(engine, Executor(engine, constraints=masks_of(model)))
            batch.ask(sampling, Limits(1500, ENDS), tokens[:cut])
            again.append(Answer(tokens[:cut] + batch.run()[0].tokens, None, "", 0).text)
    assert again == [Answer(tokens, None, "", 0).text for tokens in kept for _ in range(2)]


def test_those_who_ended_are_forgotten(engine: LoadedEngine, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those whose grammars were not seen for longest: what is kept is bounded."""
    monkeypatch.setattr(follower, "MIN_FOLLOWED_SEQUENCES", 4)
    monkeypatch.setattr(follower, "MAX_COMPILED_GRAMMARS", 3)
    kept = follower.GrammarFollowers(TOKENIZER)
    for number in range(20):
        tokens = [*PROMPT]
        kept.of(Work(number, 0, [0], ([1],), grammar_sampling(FORMS[number % 5]), tokens=tokens, prompt_tokens=40))
        kept.trim(2)
    assert len(kept._followers) == 4 and len(kept._compiled) == 3


def test_a_tokenizer_is_read_once(model: Path) -> None:
    read = []

    def count() -> LLTokenizer:
        read.append(1)
        return read_tokenizer(model, VOCABULARY)

    constraints = WakingMasks(count)
    engine = make_engine(model, cpu_backend="torch")
    batch = Batch(engine, Executor(engine, constraints=constraints))
    for form in FORMS:
        batch.ask(grammar_sampling(form), Limits(100, ENDS))
    batch.run()
    assert read == [1]
