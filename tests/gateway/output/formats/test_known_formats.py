"""Composed outputs of every family give the parts that stand beside them, however the text is cut."""

from collections.abc import Sequence
from typing import Any, get_args

import pytest

from contracts.kinds import ReasoningParser, ToolParser
from gateway.output.answer_format import answer_format
from gateway.output.formats.known_formats import THINKING_FORMATS
from gateway.output.formats.known_formats import TOOL_FORMATS as KNOWN
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.thinking import THINK_TAGS, Thinking
from gateway.text.shown_tools import NOTHING_SHOWN
from tests.gateway.output.composed import FAMILIES, USE, cuts, format_of, outputs, parsed, shown


@pytest.mark.parametrize("family", FAMILIES)
def test_a_composed_output_has_its_parts_however_it_is_cut(family: str) -> None:
    known = format_of(family)
    for output in outputs(family):
        assert parsed(known.parser(output.prompt, USE), [output.text]) == output.parts, output.text
        for pieces in cuts(output.text):
            assert parsed(known.parser(output.prompt, USE), pieces) == output.parts, pieces


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_recognised_by_its_template(family: str) -> None:
    found = format_of(family).tool_format
    assert found is not None
    assert found.name == family


@pytest.mark.parametrize(("option", "known"), [(ToolParser, KNOWN), (ReasoningParser, THINKING_FORMATS)])
def test_an_option_names_the_formats(option: Any, known: Sequence[ToolFormat | Thinking]) -> None:
    names = get_args(get_args(option)[0])
    assert sorted(names) == sorted(["auto", "none", *(found.name for found in known)])
    assert all(name in get_args(option)[1].description for name in names)


def test_every_family_has_outputs() -> None:
    assert sorted(family.name for family in KNOWN) == FAMILIES


def test_options_come_before_the_template() -> None:
    assert answer_format(shown("hermes"), lambda text: None, tools="none").tool_format is None
    found = answer_format(NOTHING_SHOWN, lambda text: None, tools="hermes", reasoning="think")
    assert found.tool_format is not None
    assert (found.tool_format.name, found.thinking) == ("hermes", THINK_TAGS)
