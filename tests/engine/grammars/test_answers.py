"""Answers of random models keep to their grammars, every one of them, whatever computes and however it is drawn."""

from pathlib import Path

import pytest

from contracts.messages.sampling import Sampling
from gateway.grammar.texts import of_json_schema, of_regex
from tests.engine.grammars.answering import Answer, ask_all, grammar_sampling, random_model
from tests.engine.grammars.schemas import REGEXES, SCHEMAS
from tests.engine.grammars.validity import wrong_json, wrong_text
from tests.engine.test_golden import make_engine

MAX_ANSWER_TOKENS = 1500  # tokens of an answer; all end before
GREEDY, DRAWN = 0.0, 1.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("grammars") / "model")


def unfinished(answer: Answer) -> str:
    """Why an answer did not come to its end; empty: it did."""
    if answer.finish == "stop":
        return ""
    return f"{answer.failed} {answer.finish} after {len(answer.tokens)} tokens: {answer.text[:80]}"


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_all_answers_are_what_was_asked_for(backend: str, model: Path) -> None:
    engine = make_engine(model, cpu_backend=backend, kv_memory=64 << 20, max_model_len=2048)
    asked: list[Sampling] = []
    for temperature, seeds in ((GREEDY, 1), (DRAWN, 2)):
        for seed in range(seeds):
            asked += [grammar_sampling(of_json_schema(schema), seed, temperature) for schema in SCHEMAS.values()]
            asked += [grammar_sampling(of_regex(regex), seed, temperature) for regex in REGEXES]
    answers = ask_all(engine, model, asked, MAX_ANSWER_TOKENS)
    wrong: dict[tuple[int, str], str] = {}
    each = len(SCHEMAS) + len(REGEXES)
    for start in range(0, len(answers), each):
        found = iter(answers[start : start + each])
        for name, schema in SCHEMAS.items():
            wrong[start, name] = unfinished(answer := next(found)) or wrong_json(schema, answer.text)
        for regex in REGEXES:
            wrong[start, regex] = unfinished(answer := next(found)) or wrong_text(regex, answer.text)
    assert len(wrong) == len(answers) and {name: why for name, why in wrong.items() if why} == {}
