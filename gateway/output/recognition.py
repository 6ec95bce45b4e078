"""Finds a model's format of calls: the first whose parser reads the calls that the chat template writes.

A template that writes no calls is recognised by the words with which it explains calls to the model, or by a vocabulary
that has the format's markers as tokens.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import TokenId
from gateway.output.parts import CallArguments, CallBegins, Part
from gateway.output.reader import OutputReader, ReadingParser
from gateway.output.tools import Tool, ToolUse
from gateway.text.shown_tools import PROBE_PARAMETERS, PROBE_TOOL_NAME, ShownCalls, ShownTools

_PROBE_USE = ToolUse((Tool(PROBE_TOOL_NAME, PROBE_PARAMETERS),))


def recognised(families: Sequence[ToolFormat], shown_tools: ShownTools, token_id: TokenId) -> ToolFormat | None:
    """Returns the first fitting format, or None if none fits or the template takes no tools."""
    if not shown_tools.takes:
        return None
    if (calls := shown_tools.calls) is not None:
        return next((family for family in families if _reads(family, calls)), None)
    described = (family for family in families if all(words in shown_tools.source for words in family.words))
    spelled = (
        family
        for family in families
        if len(family.markers) > 1 and not family.beside and all(token_id(text) is not None for text in family.markers)
    )
    return next(described, None) or next(spelled, None)


def _reads(family: ToolFormat, calls: ShownCalls) -> bool:
    """Returns whether a format's parser finds exactly these calls, and the text has the format's own markers."""
    return any(
        all(words in text for words in family.written) and _called(_parts(family, text)) == list(calls.arguments)
        for text in calls.texts
    )


def _parts(family: ToolFormat, text: str) -> Sequence[Part]:
    reader = OutputReader()
    parser = ReadingParser(reader, family.read(reader, _PROBE_USE, ""))
    return [*parser.push(text), *parser.flush()]


def _called(parts: Iterable[Part]) -> list[Mapping[str, Any]] | None:
    """Returns the arguments of each call; None if a call is of another tool, or its arguments are not JSON."""
    texts: list[list[str]] = []
    for part in parts:
        if isinstance(part, CallBegins):
            if part.name != PROBE_TOOL_NAME:
                return None
            texts.append([])
        elif isinstance(part, CallArguments):
            texts[-1].append(part.text)
    try:
        return [json.loads("".join(text)) for text in texts]
    except ValueError:
        return None
