"""Composes outputs: texts as models of each family write them, and the parts that they consist of.

Nothing here was written by a model. What all families can say is written by each one's chat template, from the same
calls. `outputs/FAMILY.json` adds what the family alone can: `outputs`, objects with `text`; `parts`, each
`{"content"}`, `{"reasoning"}` or `{"call", "arguments"}`; `prompt`, the end of the rendered prompt, where it matters;
`called: false` where the text is broken, or written in a way that the family's grammar does not let pass;
`spelled: true` where a marker is part of what is said, so that it cannot be a token of its own; and `refused`, texts
with calls that break the tools' schemas or the format.
"""

import codecs
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gateway.output.answer_format import AnswerFormat, answer_format
from gateway.output.lark import TokenId
from gateway.output.parts import CallArguments, CallBegins, Content, OutputParser, Part
from gateway.output.tools import Tool, ToolUse
from gateway.text.chat import Chat
from gateway.text.chat_template import ChatTemplate
from gateway.text.shown_tools import ShownTools
from tests.gateway.output.call_templates import CALLS, chat_template

HERE = Path(__file__).parent
FAMILIES = sorted({*(path.stem for path in (HERE / "templates").glob("*.jinja")), *CALLS})
EACH_READER = (
    "command_r7b",
    "deepseek_v32",
    "functionary_v32",
    "gemma4",
    "harmony",
    "hermes",
    "kimi_k2",
    "llama3_json",
    "mistral",
    "mistral_named",
    "pythonic",
    "qwen3_coder",
)
"""A family for each way in which the parsers read, for tests of what does not depend on the markers' words."""
ONE_CALL = frozenset({"harmony", "gigachat3", "gigachat31"})  # families whose answers have one call at most
CALLS_ALONE = frozenset({"harmony", "mistral", "pythonic", "llama3_json"})  # families that say nothing before calls
WHOLE_VALUES = frozenset({"pythonic", "lfm2"})  # families whose arguments leave when they are whole

TOOLS = (
    Tool(
        "weather",
        {
            "type": "object",
            "properties": {
                "place": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["place"],
            "additionalProperties": False,
        },
    ),
    Tool(
        "add",
        {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    ),
    Tool("now"),
    Tool(
        "note",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "pinned": {"type": "boolean"},
                "place": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "at": {"type": "array", "items": {"type": "number"}}},
                },
                "until": {"type": ["string", "null"]},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
    ),
)
USE = ToolUse(TOOLS)


Calls = Sequence[tuple[str, Mapping[str, Any]]]
OSLO = ("weather", {"place": "Oslo"})
SAID: Sequence[tuple[str, Calls]] = (
    ("It is sunny.", ()),
    (" \n A list:\n\n1. One\n2. Two < 3\n", ()),
    ("", [OSLO]),
    ("", [("weather", {"place": "São Paulo", "days": 3, "unit": "celsius"})]),
    ("I will look it up.", [OSLO]),
    ("", [("now", {})]),
    ("", [OSLO, ("weather", {"place": "東京 🗼"})]),
    ("", [("add", {"a": 1, "b": -2500.5}), ("now", {}), OSLO]),
    ("", [("note", {"text": 'She said "yes", then {left}.', "tags": ["a", "b]"], "pinned": True})]),
    ("", [("note", {"text": "1\n2\\", "place": {"name": "x", "at": [1.5, -2]}, "until": None})]),
)
"""What an answer says, and then calls, in all families."""
REFUSED: Sequence[Calls] = (
    [("weather", {"days": 3})],
    [("weather", {"place": "Oslo", "days": "many"})],
    [("weather", {"place": "Oslo", "days": 99})],
    [("weather", {"place": "Oslo", "unit": "kelvin"})],
    [("weather", {"place": "Oslo", "wind": True})],
    [("unheard_of", {})],
    [("now", {"a": 1})],
)
"""Calls that break a tool's schema, in all families."""


class Output(NamedTuple):
    family: str
    text: str
    parts: list[dict[str, Any]]
    prompt: str = ""
    called: bool = True
    spelled: bool = False


@functools.cache
def outputs(family: str) -> list[Output]:
    said = [
        Output(family, written(family, calls, content), [*([{"content": content}] if content else ()), *_parts(calls)])
        for content, calls in SAID
        if (len(calls) < 2 or family not in ONE_CALL) and not (content and calls and family in CALLS_ALONE)
    ]
    whole = written(family, [OSLO])
    cut = whole[: whole.index("Os") + 2]
    begun = [{"content": cut}] if family in WHOLE_VALUES else [{"call": "weather", "arguments": '{"place": "Os'}]
    broken = Output(family, cut, begun, called=False)
    return [*said, broken, *(Output(family, **entry) for entry in _file(family)["outputs"])]


def refused(family: str) -> list[str]:
    return [*(written(family, calls) for calls in REFUSED), *_file(family)["refused"]]


def _parts(calls: Calls) -> list[dict[str, Any]]:
    return [{"call": name, "arguments": json.dumps(arguments, ensure_ascii=False)} for name, arguments in calls]


def _file(family: str) -> dict[str, Any]:
    path = HERE / "outputs" / f"{family}.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {"outputs": [], "refused": []}
    return found


def written(family: str, calls: Calls, content: str = "") -> str:
    """Returns how a family's template writes an answer, without the template's words around it."""
    rendered = chat_template_of(family)
    question = {"role": "user", "content": "Q"}
    given = [
        {"id": f"call0000{place % 10}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]
    said = {"role": "assistant", "content": content or None} | ({"tool_calls": given} if given else {})
    whole, plain = (
        rendered.render(Chat([question, message], answer=False))
        for message in (said, {"role": "assistant", "content": "ZZZ"})
    )
    before, _, behind = plain.partition("ZZZ")
    before = before.removesuffix(">>>all\n").removesuffix("<|channel|>final<|message|>")
    if not whole.startswith(before):
        before = before[: next(place for place, sign in enumerate(before) if whole[place] != sign)]
    return whole.removeprefix(before).removesuffix(behind)


def template(family: str) -> str:
    path = HERE / "templates" / f"{family}.jinja"
    return path.read_text("utf-8") if path.exists() else chat_template(family)


@functools.cache
def chat_template_of(family: str) -> ChatTemplate:
    return ChatTemplate(template(family), {"bos_token": "<bos>", "eos_token": "<eos>"})


@functools.cache
def shown(family: str) -> ShownTools:
    return chat_template_of(family).shown_tools()


def format_of(family: str, token_id: TokenId = lambda text: None) -> AnswerFormat:
    return answer_format(shown(family), token_id)


def plain(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Returns parts as a composed output has them: whole, and neighbours joined."""
    found: list[tuple[str, str, list[str]]] = []  # a kind, a call's name, and its text in pieces
    calls = 0
    for part in parts:
        if isinstance(part, CallBegins):
            assert part.call == calls, "calls are counted from 0"
            calls += 1
            found.append(("arguments", part.name, []))
            continue
        assert part.text
        if isinstance(part, CallArguments):
            assert part.call == calls - 1 and found[-1][0] == "arguments", "arguments follow their call"
        else:
            kind = "content" if isinstance(part, Content) else "reasoning"
            if not (found and found[-1][0] == kind):
                found.append((kind, "", []))
        found[-1][2].append(part.text)
    return [{kind: "".join(text)} | ({"call": name} if name else {}) for kind, name, text in found]


def parsed(parser: OutputParser, pieces: Iterable[str]) -> list[dict[str, Any]]:
    parts = [part for piece in pieces for part in parser.push(piece)]
    return plain([*parts, *parser.flush()])


def cuts(text: str) -> Iterator[list[str]]:
    """Yields the text cut in two at every byte, as a stream's decoder hands it on, and in characters."""
    encoded = text.encode()
    for place in range(len(encoded) + 1):
        decoder = codecs.getincrementaldecoder("utf-8")()
        yield [decoder.decode(encoded[:place]), decoder.decode(encoded[place:], final=True)]
    yield list(text)
