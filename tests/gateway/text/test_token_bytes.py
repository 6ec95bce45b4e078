"""The bytes of tokens put together are the text's; names of tokens are told apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.text.tokenizer import ModelTokenizer
from tests.gateway.models import byte_level, llama_style, unigram

TEXT = "Hello, world! É, ü, 漢字 and 🙂🎉 \n are <tool call> characters"


@pytest.mark.parametrize("make", [byte_level, llama_style, unigram])
def test_bytes_add_up_to_the_text(tmp_path: Path, make: Callable[..., Any]) -> None:
    ours = ModelTokenizer(make(tmp_path))
    ids = ours.encode(TEXT, special=False)
    if make is unigram:  # it does not know every character
        ids = [id for id in ids if id != ours.token_id("<unk>")]
    joined = b"".join(map(ours.bytes_of.of, ids)).decode()
    assert joined.removeprefix(" ") == ours.decode(ids)


def test_names_differ(tmp_path: Path) -> None:
    ours = ModelTokenizer(byte_level(tmp_path, vocabulary=500))
    names = [ours.bytes_of.name(token) for token in range(ours.vocabulary)]
    assert len(set(names)) == len(names)
    assert names[2] == "<|im_end|>" and names[-1] == "token_id:499"
    first = ours.encode("🙂", special=False)[0]
    assert names[first] == "bytes:\\xf0" or "\ufffd" not in names[first]
