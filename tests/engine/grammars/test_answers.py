"""Answers of random models keep to their grammars, every one of them, whatever computes and however it is drawn."""

import json
import re
import unicodedata
from datetime import datetime, time
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from core.messages import Sampling
from gateway.grammar.texts import of_json_schema, of_regex
from tests.engine.grammars.answering import Answer, ask_all, grammar_sampling, random_model
from tests.engine.grammars.schemas import REGEXES, SCHEMAS
from tests.engine.test_golden import make_engine

MOST = 1500  # tokens of an answer; all end before
GREEDY, DRAWN = 0.0, 1.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("grammars") / "model")


FORMATS = FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
"""Of those that are left out jsonschema's own checks want other packages."""


def is_time(value: object) -> bool:
    """By RFC 3339, which has leap seconds."""
    return not isinstance(value, str) or bool(time.fromisoformat(value.replace(":60", ":59")))


def is_date_time(value: object) -> bool:
    return not isinstance(value, str) or bool(datetime.fromisoformat(value.replace(":60", ":59")))


def is_duration(value: object) -> bool:
    found = re.fullmatch(r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)", str(value))
    return not isinstance(value, str) or found is not None


for name, check in (("time", is_time), ("date-time", is_date_time), ("duration", is_duration)):
    FORMATS.checks(name, ValueError)(check)


def wrong_json(schema: object, answer: Answer) -> str:
    """What is wrong with an answer; empty: nothing."""
    if answer.failed or answer.finish != "stop":
        return f"{answer.failed} {answer.finish} after {len(answer.tokens)} tokens: {answer.text[:80]}"
    try:
        value = json.loads(answer.text)
    except ValueError as error:
        return f"{error}: {answer.text[:80]}"
    checker = Draft202012Validator(schema, format_checker=FORMATS)
    return "; ".join(f"{error.message} at {list(error.path)}" for error in checker.iter_errors(value))


def wrong_text(regex: str, answer: Answer) -> str:
    if answer.failed or answer.finish != "stop":
        return f"{answer.failed} {answer.finish} after {len(answer.tokens)} tokens: {answer.text[:80]}"
    # Letters that are younger than Python's tables of them are none to it.
    text = "".join("x" if unicodedata.category(character) == "Cn" else character for character in answer.text)
    return "" if re.fullmatch(regex, text) else f"does not match: {answer.text[:80]!r}"


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_all_answers_are_what_was_asked_for(backend: str, model: Path) -> None:
    engine = make_engine(model, cpu_backend=backend, kv_memory=64 << 20, max_model_len=2048)
    asked: list[Sampling] = []
    for temperature, seeds in ((GREEDY, 1), (DRAWN, 2)):
        for seed in range(seeds):
            asked += [grammar_sampling(of_json_schema(schema), seed, temperature) for schema in SCHEMAS.values()]
            asked += [grammar_sampling(of_regex(regex), seed, temperature) for regex in REGEXES]
    answers = ask_all(engine, model, asked, MOST)
    assert len(answers) == 450
    wrong: dict[tuple[int, str], str] = {}
    each = len(SCHEMAS) + len(REGEXES)
    for start in range(0, len(answers), each):
        found = iter(answers[start : start + each])
        wrong |= {(start, name): why for name, schema in SCHEMAS.items() if (why := wrong_json(schema, next(found)))}
        wrong |= {(start, regex): why for regex in REGEXES if (why := wrong_text(regex, next(found)))}
    assert wrong == {}
