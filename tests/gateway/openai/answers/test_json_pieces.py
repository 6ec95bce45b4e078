"""Large answers: pieces add up to what is encoded at once, and none is large."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.openai.answers.json_pieces import PIECE_BYTES, json_pieces


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        None,
        "é\n",
        {"a": {}, "b": [], "c": [{}], "d": [{"e": [None, 1.5]}, {}], 'f"': "g"},
        {"choices": [{"logprobs": {"content": [*range(1000)]}}, {"logprobs": None}], "usage": {"n": 1}},
        [[1] * 300] * 300,
    ],
)
def test_pieces_add_up_to_what_is_encoded_at_once(value: Any) -> None:
    assert b"".join(json_pieces(value)) == msgspec.json.encode(value)


def test_no_piece_is_large_however_long_the_lists_are() -> None:
    entry = Raw(b'{"1":"' + b"x" * 1400 + b'"}')
    body = {"choices": [{"text": "a", "prompt_logprobs": [None, *[entry] * 3000]}]}
    pieces = list(json_pieces(body))
    assert b"".join(pieces) == msgspec.json.encode(body)
    assert len(pieces) > 10 and max(map(len, pieces)) < 3 * PIECE_BYTES
