"""Of an answer that a limit of tokens cuts short, no markup reaches a client: neither half a marker nor half a call."""

from collections.abc import Iterable
from typing import Any

import pytest

from gateway.output.parts import OutputParser
from gateway.output.tools import ToolUse
from tests.gateway.output.composed import EACH_READER, USE, format_of, outputs, plain

families = pytest.mark.parametrize("family", EACH_READER)


def cut(parser: OutputParser, pieces: Iterable[str]) -> list[dict[str, Any]]:
    parts = [part for piece in pieces for part in parser.push(piece)]
    return plain([*parts, *parser.flush(cut=True)])


def said(parts: list[dict[str, Any]], kind: str) -> str:
    return "".join(part.get(kind, "") for part in parts)


@families
@pytest.mark.parametrize("use", [USE, None], ids=["tools", "no tools"])
def test_what_is_said_of_a_beginning_is_the_beginning_of_what_is_said(family: str, use: ToolUse | None) -> None:
    known = format_of(family)
    for output in outputs(family):
        if not output.called and use is not None:
            continue  # broken calls are content, and may become that at any place
        whole = cut(known.parser(output.prompt, use), [output.text + " "])
        for end in range(len(output.text) + 1):
            text = output.text[:end]
            found = cut(known.parser(output.prompt, use), [text])
            assert found == cut(known.parser(output.prompt, use), (text[at : at + 7] for at in range(0, end, 7))), text
            for kind in ("content", "reasoning"):
                assert said(whole, kind).startswith(said(found, kind).rstrip()), text


@families
def test_an_answer_that_has_to_be_calls_has_no_content_where_it_is_cut(family: str) -> None:
    known, must = format_of(family), USE._replace(must=True)
    for output in outputs(family):
        if not output.called or output.prompt or any("call" not in part for part in output.parts):
            continue
        for end in range(len(output.text)):
            for ended in (True, False):
                parser = known.parser(output.prompt, must)
                parts = [*parser.push(output.text[:end]), *parser.flush(cut=ended)]
                assert said(plain(parts), "content") == "", output.text[:end]
