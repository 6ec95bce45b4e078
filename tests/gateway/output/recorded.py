"""Reads recorded outputs: texts as models of each family write them, and the parts that they consist of.

`outputs/FAMILY.json` has `outputs`, objects with `text`; `parts`, each `{"content"}`, `{"reasoning"}` or
`{"call", "arguments"}`; `prompt`, the end of the rendered prompt, where it matters; `called: false` where the text is
broken, or written in a way that the family's grammar does not let pass; `spelled: true` where a marker is part of what
is said, so that it cannot be a token of its own. It has `refused`, texts with calls that break
the tools' schemas or the format.
"""

import codecs
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gateway.output.answer_format import AnswerFormat, answer_format
from gateway.output.lark import TokenId
from gateway.output.parts import CallArguments, CallBegins, Content, OutputParser, Part
from gateway.output.tools import Tool, ToolUse

HERE = Path(__file__).parent
FAMILIES = sorted(path.stem for path in (HERE / "outputs").glob("*.json"))

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


class Output(NamedTuple):
    """Holds one recorded output."""

    family: str
    text: str
    parts: list[dict[str, Any]]
    prompt: str = ""
    called: bool = True
    spelled: bool = False


def outputs(family: str) -> list[Output]:
    """Returns the recorded outputs of a family."""
    return [Output(family, **entry) for entry in _file(family)["outputs"]]


def refused(family: str) -> list[str]:
    """Returns texts that the family's grammar must not let pass."""
    return list(_file(family)["refused"])


def _file(family: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "outputs" / f"{family}.json").read_text("utf-8"))
    return found


def template(family: str) -> str:
    """Returns a chat template in the family's format."""
    return (HERE / "templates" / f"{family}.jinja").read_text("utf-8")


def format_of(family: str, token_id: TokenId = lambda text: None) -> AnswerFormat:
    """Returns the format of a model with that template."""
    return answer_format(template(family), token_id)


def plain(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Returns parts as a recorded output has them: whole, and neighbours joined."""
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
    """Returns what a parser makes of text in pieces."""
    parts = [part for piece in pieces for part in parser.push(piece)]
    return plain([*parts, *parser.flush()])


def cuts(text: str) -> Iterator[list[str]]:
    """Yields the text cut in two at every byte, as a stream's decoder hands it on, and in characters."""
    encoded = text.encode()
    for place in range(len(encoded) + 1):
        decoder = codecs.getincrementaldecoder("utf-8")()
        yield [decoder.decode(encoded[:place]), decoder.decode(encoded[place:], final=True)]
    yield list(text)
