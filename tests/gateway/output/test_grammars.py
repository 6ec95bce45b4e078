"""What the grammar of a family lets pass is what its models write, and nothing that breaks a tool's schema."""

import functools
import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from gateway.output.answer_format import AnswerFormat
from gateway.output.tools import Tool, ToolUse
from tests.gateway.output.composed import (
    EACH_READER,
    FAMILIES,
    ONE_CALL,
    TOOLS,
    USE,
    Output,
    format_of,
    outputs,
    parsed,
    refused,
)
from tests.gateway.output.grammars import Kind, Vocabulary

PREAMBLES = ("harmony",)  # families that may say something before a call that has to come
OTHER_KINDS: tuple[Kind, ...] = ("added", "spelled")
families = pytest.mark.parametrize("family", FAMILIES)
vocabularies = pytest.mark.parametrize(
    ("family", "kind"),
    [(family, "special") for family in FAMILIES] + [(family, kind) for family in EACH_READER for kind in OTHER_KINDS],
)


@functools.cache
def vocabulary(family: str, kind: Kind) -> Vocabulary:
    return Vocabulary(tuple(format_of(family).markers(USE)), kind)


def in_grammar(family: str, kind: Kind) -> tuple[AnswerFormat, Vocabulary, list[Output]]:
    """A family's format, a vocabulary, and its outputs that are as the format wants them."""
    words = vocabulary(family, kind)
    return (
        format_of(family, words.token_id),
        words,
        [output for output in outputs(family) if output.called and (kind == "spelled" or not output.spelled)],
    )


def calls(output: Output) -> int:
    return sum("call" in part for part in output.parts)


def only_calls(output: Output) -> bool:
    return bool(calls(output)) and not any("content" in part for part in output.parts)


@vocabularies
def test_a_composed_output_is_one_that_may_be_written(family: str, kind: Kind) -> None:
    known, words, found = in_grammar(family, kind)
    for output in found:
        assert words.accepted(known.grammar(output.prompt, USE), output.text) == output.text


@vocabularies
def test_where_a_call_has_to_come_calls_are_all_that_may_be_written(family: str, kind: Kind) -> None:
    known, words, found = in_grammar(family, kind)
    for output in found:
        may = words.accepted(known.grammar(output.prompt, USE._replace(must=True)), output.text) == output.text
        preamble = family in PREAMBLES and bool(calls(output))  # may be said before a call there
        assert may == (only_calls(output) or preamble), output.text


@vocabularies
def test_a_second_call_is_refused_where_one_is_allowed(family: str, kind: Kind) -> None:
    known, words, found = in_grammar(family, kind)
    several = [output for output in found if calls(output) > 1]
    assert several or family in ONE_CALL
    for output in found:
        for must in (False, True):
            use = USE._replace(must=must, parallel=False)
            may = words.accepted(known.grammar(output.prompt, use), output.text) == output.text
            if calls(output) > 1:
                assert not may, output.text
            elif only_calls(output):
                assert may, output.text


@vocabularies
def test_a_call_that_breaks_the_schema_is_refused(family: str, kind: Kind) -> None:
    known, words, _ = in_grammar(family, kind)
    assert refused(family)
    for text in refused(family):
        for must in (False, True):
            if not must and (text == "free" or (family == "pythonic" and "unheard_of" in text)):
                continue  # a list in brackets, which the user may have asked for
            assert words.accepted(known.grammar("", USE._replace(must=must)), text) != text, text


@families
def test_a_named_tool_is_the_only_one(family: str) -> None:
    known, words, found = in_grammar(family, "special")
    named = known.grammar("", ToolUse(TOOLS[:1], must=True, parallel=False))
    for output in found:
        if only_calls(output) and not output.prompt:
            named_alone = [part["call"] for part in output.parts if "call" in part] == [TOOLS[0].name]
            assert (words.accepted(named, output.text) == output.text) == named_alone, output.text


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("command_r7b", "<|START_RESPONSE|>It is sunny.<|END_RESPONSE|>"),
        ("gigachat3", 'So:<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "now", "arguments": {}}'),
    ],
)
@pytest.mark.parametrize("kind", ["special", "spelled"])
def test_special_tokens_may_stand_around_what_is_said(family: str, text: str, kind: Kind) -> None:
    tokens = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|message_sep|>")
    words = Vocabulary((*format_of(family).markers(USE), *tokens), kind)
    assert words.accepted(format_of(family, words.token_id).grammar("", USE), text) == text


FORM = 'start: %json {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'


@vocabularies
def test_an_answer_has_its_form_or_is_a_call(family: str, kind: Kind) -> None:
    known, words, found = in_grammar(family, kind)
    either, formed = known.grammar("", USE, FORM), known.grammar("", None, FORM)
    says = "<|channel|>final<|message|>%s" if family == "harmony" else "%s"
    assert words.accepted(either, says % '{"ok": true}') == says % '{"ok": true}'
    assert words.accepted(formed, says % '{"ok": true}') == says % '{"ok": true}'
    assert words.accepted(either, says % "Yes.") != says % "Yes."
    for output in found:
        if only_calls(output) and not output.prompt:
            marker = known.tool_format.beside if known.tool_format else ""
            text = marker + output.text.strip("\n").removeprefix(marker)
            assert words.accepted(either, text) == text
            assert words.accepted(formed, output.text) != output.text


@vocabularies
def test_thinking_is_free_before_an_answer_that_has_a_form(family: str, kind: Kind) -> None:
    known, words, _ = in_grammar(family, kind)
    thinking = known.thinking
    if thinking is None:
        assert known.grammar("", None, FORM) == FORM
        return
    thought = f"{thinking.opening}I {{could}} say\n\nno.{thinking.closing}"
    text = thought + ("<|start|>assistant<|channel|>final<|message|>" if family == "harmony" else "") + '{"ok": false}'
    assert words.accepted(known.grammar("", None, FORM), text) == text
    begun = text.removeprefix(thinking.opening)
    prompt = f"<|start|>assistant{thinking.opening}" if family == "harmony" else f"so: {thinking.opening}\n"
    assert words.accepted(known.grammar(prompt, None, FORM), begun) == begun
    assert parsed(known.parser(prompt, None), [begun]) == [
        {"reasoning": "I {could} say\n\nno."},
        {"content": '{"ok": false}'},
    ]


CHOICES = (
    Tool(
        "paint",
        {
            "type": "object",
            "properties": {
                "color": {"enum": ["red", "green"]},
                "coats": {"type": "integer", "minimum": 1, "maximum": 9},
                "dry": {"type": "boolean"},
                "sizes": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2},
            },
            "required": ["color", "dry"],
            "additionalProperties": False,
        },
    ),
    Tool("paints", {"type": "object", "properties": {"n": {"const": 5}}, "additionalProperties": False}),
    Tool("stop"),
)


def written(words: Vocabulary, grammar: str, seed: int, most: int = 600) -> str | None:
    """Writes any answer that a grammar lets pass, preferring tokens that are not white space; None if too long."""
    draw, matcher = random.Random(seed), words.matcher(grammar)
    ids: list[int] = []
    mask = allocate_token_bitmask(1, words.tokenizer.get_vocab_size())
    while len(ids) < most:
        fill_next_token_bitmask(matcher, mask, 0)
        allowed = np.flatnonzero(np.unpackbits(mask[0].view(np.uint8), bitorder="little"))
        if words.end in allowed and draw.random() < 0.7:
            return words.text(ids)
        drawn = [int(token) for token in draw.choices(allowed, k=3) if token != words.end]
        if not drawn:
            continue
        ids.append(min(drawn, key=lambda token: words.text([token]).isspace()))
        assert matcher.consume_token(ids[-1])
    return None


@vocabularies
def test_what_a_grammar_lets_pass_is_read_as_calls_that_keep_to_the_schema(family: str, kind: Kind) -> None:
    use = ToolUse(CHOICES, must=True)
    words = Vocabulary(tuple(format_of(family).markers(use)), kind)
    known = format_of(family, words.token_id)
    assert known.tool_format is not None
    grammar = known.tool_format.grammar(use, words.token_id)
    schemas = {tool.name: tool.parameters or {"maxProperties": 0} for tool in CHOICES}
    whole = [text for seed in range(8) if (text := written(words, grammar, seed)) is not None]
    assert len(whole) >= 4
    for text in whole:
        parts = parsed(known.parser(">>>" if family == "functionary_v32" else "", use), [text])
        made = [part for part in parts if "call" in part]
        assert made, text
        assert family in PREAMBLES or made == parts, text
        for call in made:
            jsonschema.validate(json.loads(call["arguments"]), schemas[call["call"]])


BROKEN: tuple[dict[str, Any], ...] = (
    {"required": 5, "properties": {"a": {"enum": 5}, "b": {"type": "string", "const": 1}}},
    {"required": [["a"], {}], "properties": {"a": {"type": ["array", []], "minItems": "x", "maxItems": {}}}},
    {"properties": {"a": {"type": "array", "minItems": None}, "b": {"items": 5, "enum": None}}, "$defs": 5},
    {"properties": [], "patternProperties": {"^a": {}}, "required": ["b"]},
)


@pytest.mark.parametrize("strict", [True, False])
def test_an_unsupported_keyword_is_an_error_only_for_a_strict_tool(strict: bool) -> None:
    words = vocabulary("hermes", "special")
    tool = Tool("f", {"properties": {"a": {"type": "array", "uniqueItems": True}}}, strict=strict)
    grammar = format_of("hermes", words.token_id).grammar("", ToolUse((tool,), must=True))
    assert LLMatcher(words.matching, grammar).is_error() is strict


@pytest.mark.parametrize("family", EACH_READER)
def test_a_tools_schema_that_is_none_is_left_to_the_check(family: str) -> None:
    for schema in BROKEN:
        use = ToolUse((Tool("f", schema),), must=True)
        assert "start:" in format_of(family, vocabulary(family, "added").token_id).grammar("", use)
