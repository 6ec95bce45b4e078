"""No text has fewer tokens than its length divided by the tokenizer's reach."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from gateway.text.longest_token import MAX_COMPOSED_CHARS, UNKNOWN_LENGTH, max_chars_per_token
from launcher.options import DEMO_MODEL
from tests.gateway.models import byte_level, llama_style

KINDS: dict[str, Callable[[Path], Path]] = {
    "byte level": byte_level,
    "byte fallback": llama_style,
    "demo": lambda _: Path(DEMO_MODEL),
}


def reach_of(tokenizer: Tokenizer) -> int:
    return max_chars_per_token(json.loads(tokenizer.to_str()), tokenizer.get_vocab(with_added_tokens=True))


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = KINDS[request.param](tmp_path_factory.mktemp("model"))
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def check(tokenizer: Tokenizer, text: str) -> None:
    most = reach_of(tokenizer)
    assert most != UNKNOWN_LENGTH
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert len(text) <= most * len(ids)


@settings(max_examples=50)
@given(st.data())
def test_a_token_reaches_no_further(tokenizer: Tokenizer, data: st.DataObject) -> None:
    longest = sorted(tokenizer.get_vocab(), key=len)[-8:]
    pieces = st.one_of(st.sampled_from([*longest, " ", "\n", "漢", "e\u0301", "\u0000", "🙂"]), st.text(max_size=6))
    check(tokenizer, "".join(data.draw(st.lists(pieces, max_size=12))))


@pytest.mark.parametrize("form", ["NFC", "NFKC", "NFD", "NFKD"])
@pytest.mark.parametrize("letter", ["\u03b1\u0313\u0300\u0345", "\u1100\u1161\u11a8", "\ufdfa", "e\u0301"])
def test_normal_forms_compose_no_more_than_they_are_allowed(tmp_path: Path, form: str, letter: str) -> None:
    tokenizer = Tokenizer.from_file(str(byte_level(tmp_path) / "tokenizer.json"))
    plain = reach_of(tokenizer)
    tokenizer.normalizer = getattr(normalizers, form)()
    assert reach_of(tokenizer) == plain * (MAX_COMPOSED_CHARS if form.endswith("C") else 1)
    check(tokenizer, letter * 50)


VOCABULARY = {"a": 0, "bcd": 1, "<unk>": 2}
BPE = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": False, "byte_fallback": False}
REMOVED = {"type": "Split", "pattern": {"Regex": " "}, "behavior": "Removed", "invert": False}
ISOLATED = REMOVED | {"behavior": "Isolated"}


def replaced(by: str, **pattern: str) -> dict[str, Any]:
    return {"normalizer": {"type": "Replace", "pattern": pattern, "content": by}}


ROWS: dict[str, tuple[dict[str, Any], int]] = {
    "the longest token": ({}, 5),
    "a space's sign": (replaced("▁", String=" "), 5),
    "three for two": (replaced("yy", String="xxx"), 10),
    "replaced by nothing": (replaced("", String="x"), UNKNOWN_LENGTH),
    "a pattern": (replaced("x", Regex="x+"), UNKNOWN_LENGTH),
    "both": ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}}, 20),
    "stripped": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}},
        UNKNOWN_LENGTH,
    ),
    "a SentencePiece map": ({"normalizer": {"type": "Precompiled"}}, UNKNOWN_LENGTH),
    "divided": ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [ISOLATED, {"type": "Digits"}]}}, 5),
    "what is between is dropped": ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [REMOVED]}}, UNKNOWN_LENGTH),
    "white space is dropped": ({"pre_tokenizer": {"type": "Whitespace"}}, UNKNOWN_LENGTH),
    "a token takes the space beside it": ({"added_tokens": [{"content": "a", "rstrip": True}]}, UNKNOWN_LENGTH),
    "unknown characters are dropped": ({"model": BPE | {"unk_token": None}}, UNKNOWN_LENGTH),
    "unknown characters are joined": ({"model": BPE | {"fuse_unk": True}}, UNKNOWN_LENGTH),
    "a byte is missing": ({"model": BPE | {"byte_fallback": True}}, UNKNOWN_LENGTH),
    "a byte's letter is missing": ({"pre_tokenizer": {"type": "ByteLevel"}}, UNKNOWN_LENGTH),
    "unigrams": ({"model": {"type": "Unigram", "byte_fallback": False}}, UNKNOWN_LENGTH),
    "whole words": ({"model": {"type": "WordPiece", "unk_token": "<unk>"}}, UNKNOWN_LENGTH),
}


@pytest.mark.parametrize("row", ROWS)
def test_what_could_let_text_vanish_has_no_reach(row: str) -> None:
    changed, expected = ROWS[row]
    assert max_chars_per_token({"model": BPE} | changed, VOCABULARY) == expected
