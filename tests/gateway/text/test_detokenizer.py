"""Incremental text equals the text of all tokens at once, and no piece of it holds half a character."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from checkpoints.vocabulary.alphabet import byte_alphabet
from gateway.text.detokenizer import REPLACEMENT_CHARACTER, Detokenizer
from gateway.text.tokenizer import ModelTokenizer
from tests.gateway.models import byte_level, llama_style

CHARACTERS = st.text(st.sampled_from("ab zé漢字🙂👩‍👩‍👧\n<"), max_size=40)


def text_of(detokenizer: Detokenizer, tokens: list[int]) -> str:
    return "".join([*map(detokenizer.push, tokens), detokenizer.flush()])


@pytest.fixture(scope="module")
def bytes_like(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(byte_level(tmp_path_factory.mktemp("bytes"), vocabulary=500))


@pytest.fixture(scope="module")
def pieces_like(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(llama_style(tmp_path_factory.mktemp("pieces")))


@given(ids=st.lists(st.integers(0, 499), max_size=60))
def test_any_ids_of_a_byte_level_tokenizer(bytes_like: ModelTokenizer, ids: list[int]) -> None:
    assert text_of(bytes_like.detokenizer(), ids) == bytes_like.decode(ids)


@given(ids=st.lists(st.lists(st.integers(0, 499), min_size=1, max_size=5), max_size=20), markers=st.booleans())
def test_several_tokens_at_once_give_the_text_of_each(
    bytes_like: ModelTokenizer, pieces_like: ModelTokenizer, ids: list[list[int]], markers: bool
) -> None:
    for tokenizer in (bytes_like, pieces_like):
        written = tokenizer.special_texts() if markers else ()
        one, many = tokenizer.detokenizer(written), tokenizer.detokenizer(written)
        for some in ids:
            assert many.text_of(some) == "".join(map(one.push, some))
        assert many.flush() == one.flush()


@given(text=CHARACTERS)
def test_text_of_a_byte_level_tokenizer_never_splits_a_character(bytes_like: ModelTokenizer, text: str) -> None:
    detokenizer = bytes_like.detokenizer()
    pieces = [detokenizer.push(token) for token in bytes_like.encode(text, special=False)]
    assert "".join(pieces) == text
    assert not any(REPLACEMENT_CHARACTER in piece for piece in pieces)
    assert detokenizer.flush() == ""


@given(text=CHARACTERS, begin=st.booleans())
def test_text_of_a_byte_fallback_tokenizer(pieces_like: ModelTokenizer, text: str, begin: bool) -> None:
    ids = pieces_like.encode(text, special=begin)
    detokenizer = pieces_like.detokenizer()
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join([*pieces, detokenizer.flush()]) == pieces_like.decode(ids)
    assert not any(REPLACEMENT_CHARACTER in piece for piece in pieces)


@given(ids=st.lists(st.integers(0, 700), max_size=60))
def test_any_ids_of_a_byte_fallback_tokenizer_are_bounded(pieces_like: ModelTokenizer, ids: list[int]) -> None:
    """Broken bytes become replacement characters soon: nothing is held back for ever."""
    detokenizer = pieces_like.detokenizer()
    for token in ids:
        detokenizer.push(token)
    assert len(detokenizer.flush()) <= 16


def test_half_a_character_at_the_end_is_a_replacement_character(bytes_like: ModelTokenizer) -> None:
    ids = bytes_like.encode("🎊", special=False)
    assert len(ids) > 1, "this emoji must not be a token of its own"
    detokenizer = bytes_like.detokenizer()
    assert [detokenizer.push(token) for token in ids[:-1]] == [""] * (len(ids) - 1)
    assert detokenizer.flush() == REPLACEMENT_CHARACTER


def test_unknown_ids_and_special_tokens_become_nothing(bytes_like: ModelTokenizer) -> None:
    stop = bytes_like.stop_ids[0]
    ids = [499, *bytes_like.encode("a", special=False), stop, 450, *bytes_like.encode("b", special=False)]
    assert text_of(bytes_like.detokenizer(), ids) == "ab"


def test_an_added_token_keeps_its_spelling(bytes_like: ModelTokenizer) -> None:
    ids = bytes_like.encode("a<tool call>b", special=False)
    assert text_of(bytes_like.detokenizer(), ids) == "a<tool call>b"


def test_the_alphabet_is_the_tokenizers_own(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(byte_level(tmp_path) / "tokenizer.json"))
    for character, byte in byte_alphabet().items():
        assert tokenizer.decoder.decode([character]) == bytes([byte]).decode(errors="replace")


@pytest.mark.parametrize("kind", ["bytes_like", "pieces_like"])
def test_markers_are_written_out_and_other_special_tokens_are_not(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: ModelTokenizer = request.getfixturevalue(kind)
    marker, other = ("<|im_start|>", "<|im_end|>") if kind == "bytes_like" else ("<s>", "</s>")
    ids = tokenizer.encode(f"{marker}Hello, 漢字{marker}{marker}dog{other}{marker}", special=False)
    assert text_of(tokenizer.detokenizer([marker]), ids) == f"{marker}Hello, 漢字{marker}{marker}dog{marker}"
    assert text_of(tokenizer.detokenizer(["<no such token>"]), ids) == text_of(tokenizer.detokenizer(), ids)


def test_a_marker_ends_a_character_that_stayed_incomplete(bytes_like: ModelTokenizer) -> None:
    half = bytes_like.encode("🙂", special=False)[:1]
    marker = bytes_like.token_id("<|im_end|>")
    assert marker is not None
    assert text_of(bytes_like.detokenizer(["<|im_end|>"]), [*half, marker, *half]) == "�<|im_end|>�"


def test_ids_of_added_tokens_are_known_by_their_text(bytes_like: ModelTokenizer) -> None:
    assert bytes_like.token_id("<tool call>") == bytes_like.encode("<tool call>", special=False)[0]
    assert bytes_like.token_id("the") is None
