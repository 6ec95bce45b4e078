"""The text of a custom tool's call is the same however its JSON is cut."""

import json

import pytest

from gateway.output.custom_calls import CallInputReader

TEXTS = ["", "plain", 'a "quoted" \\ one\n\tand é', "🙂 漢", "{}", "\\u0041"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ascii", [False, True])
def test_every_cut_gives_the_text(text: str, ascii: bool) -> None:
    written = json.dumps({"input": text}, ensure_ascii=ascii)
    for size in range(1, len(written) + 1):
        reader = CallInputReader()
        pieces = [reader.push(written[begin : begin + size]) for begin in range(0, len(written), size)]
        assert "".join(pieces) == text


def test_what_is_no_input_gives_no_text_and_half_a_character_is_replaced() -> None:
    assert CallInputReader().push('{"other": "x"}') == ""
    assert CallInputReader().push('{"input": "a\\ud83dz"}') == "a\ufffdz"
