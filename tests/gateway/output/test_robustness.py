"""Whatever a model writes, a parser never raises, loses nothing of what is said, and takes time linear in the text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.output.answer_format import AnswerFormat
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.reader import OutputReader, ReadingParser
from tests.gateway.output.composed import EACH_READER, USE, format_of, parsed, plain, written

MB = 1 << 20
families = pytest.mark.parametrize("family", EACH_READER)


def calls(family: str, texts: list[str]) -> str:
    return written(family, [("note", {"text": text}) for text in texts])


def family_of(family: str) -> ToolFormat:
    found = format_of(family).tool_format
    assert found is not None
    return found


def fragments(known: AnswerFormat) -> list[str]:
    """Pieces of the format: markers, halves of them, and what stands between them."""
    assert known.tool_format is not None
    whole = calls(known.tool_format.name, ["x", 'y"'])
    markers = sorted(known.markers(USE))
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    return [
        *markers,
        *(marker[: len(marker) // 2] for marker in markers),
        *pieces,
        *('{"name": "now"', '"arguments":', "{", "}", "[", "]", '"', "\\", ",", " ", "\n", "now", "(", ")", "=", "é🙂"),
        *("<function=now>", "<parameter=a>", "</parameter>", "</function>", "to=functions.now", "assistant", "final"),
    ]


@families
@settings(max_examples=30)
@given(data=st.data())
def test_any_text_is_parsed_alike_however_it_is_cut(family: str, data: st.DataObject) -> None:
    known = format_of(family)
    pieces = data.draw(st.lists(st.sampled_from(fragments(known)), max_size=25))
    text = "".join(pieces)
    whole = parsed(known.parser("", USE), [text])
    assert parsed(known.parser("", USE), pieces) == whole
    assert parsed(known.parser("", USE), list(text)) == whole
    rest = iter(text)
    said = "".join(part.get("content", part.get("reasoning", "")) for part in whole)
    assert all(character in rest for character in said), "what is said stands in the text, in that order"
    if all("content" in part for part in whole) and family != "harmony":
        thinking = known.thinking
        assert said == text or (thinking is not None and thinking.opening in text)


@families
@settings(max_examples=30)
@given(text=st.text(st.characters(exclude_characters="<[{", exclude_categories=["Cs"]), max_size=60))
def test_text_without_a_marker_is_content(family: str, text: str) -> None:
    assert parsed(format_of(family).parser("", USE), list(text)) == ([{"content": text}] if text else [])


@families
@pytest.mark.parametrize("size", [1, 5, 4096])
def test_nothing_is_held_back_but_what_may_be_a_marker(family: str, size: int) -> None:
    """So each push costs what it brings, and the time is linear in the text."""
    text = "Well.\n" * 20 + calls(family, ["x" * 3000] * 5) + " \n" * 500 + calls(family, ["y" * 300])[:-40]
    longest = max(map(len, (*format_of(family).markers(USE), "function call<|role_sep|>\n")))
    reader = OutputReader()
    parser = ReadingParser(reader, family_of(family).read(reader, USE, ""))
    for at in range(0, len(text), size):
        parser.push(text[at : at + size])
        assert len(reader.text) - reader.at < longest, text[:at][-60:]
        assert len(reader.text) < longest + size, "what was read is not kept"


@families
@pytest.mark.parametrize("piece", [100, MB])
def test_a_megabyte_of_arguments(family: str, piece: int) -> None:
    text = calls(family, ["x" * MB])
    found = parsed(format_of(family).parser("", USE), (text[at : at + piece] for at in range(0, len(text), piece)))
    assert [json.loads(part["arguments"]) for part in found] == [{"text": "x" * MB}]


@families
@pytest.mark.parametrize("piece", [100, MB])
def test_a_thousand_calls(family: str, piece: int) -> None:
    text = calls(family, [str(number) for number in range(1000)])
    parser = format_of(family).parser("", USE)
    parts = [part for at in range(0, len(text), piece) for part in parser.push(text[at : at + piece])]
    begun = plain([*parts, *parser.flush()])
    assert [json.loads(part["arguments"])["text"] for part in begun] == [str(number) for number in range(1000)]


@families
def test_deep_nesting(family: str) -> None:
    """Brackets without end are arguments that break off, a string, or content: never an exception."""
    for nested in ("[" * 20_000, '{"a":' * 20_000, "(" * 20_000, "[" * 20_000 + "]" * 20_000):
        text = calls(family, ["x"])
        for around in ('"x"', "\nx\n", ">x<", '<|"|>x<|"|>'):
            text = text.replace(around, around[0].strip('"') + nested + around[-1].strip('"'))
        assert nested in text
        assert parsed(format_of(family).parser("", USE), [text])
