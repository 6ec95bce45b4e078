"""A tiktoken.model gives the ids that tiktoken gives with the pattern and special tokens of the model's own code."""

import base64
from pathlib import Path

import pytest
import tiktoken
from tokenizers import Tokenizer

from checkpoints.vocabulary.reading import tokenizer_of
from contracts.errors import ModelError
from tests.checkpoints.vocabulary import models
from tests.checkpoints.vocabulary.models import ranked, texts

PATTERN = (  # as Moonshot's tokenization_kimi.py has it
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VOCABULARY_TOKENS = 6000
SPECIAL = {"[BOS]": VOCABULARY_TOKENS, "[EOS]": VOCABULARY_TOKENS + 1, "<|tool_call_begin|>": VOCABULARY_TOKENS + 3}


def reference() -> tiktoken.Encoding:
    """As Moonshot's tokenization_kimi.py makes it: reserved tokens where none is listed, up to the vocabulary's end."""
    reserved = {
        f"<|reserved_token_{id}|>": id
        for id in range(VOCABULARY_TOKENS, VOCABULARY_TOKENS + 8)
        if id not in SPECIAL.values()
    }
    ranks = {token: rank for rank, token in enumerate(ranked(VOCABULARY_TOKENS))}
    return tiktoken.Encoding("own", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=SPECIAL | reserved)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(models.tiktoken(tmp_path_factory.mktemp("tiktoken")))


def test_ids_are_tiktokens(ours: Tokenizer) -> None:
    theirs = reference()
    for text in [
        *texts(),
        "漢字かなAbc漢DEf",
        "日本語 текст ABCdef'Ll x'S",
        "[BOS]a<|reserved_token_6002|>b<|tool_call_begin|>",
    ]:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text, allowed_special="all"), repr(text)
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.get_vocab_size() == theirs.n_vocab


def test_a_piece_that_is_a_token_is_that_token_whatever_merges_lead_to(tmp_path: Path) -> None:
    """And of two merges the one that makes the lower rank comes first."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"bc", b"ab", b"xyz", b"abcd"]
    directory = models.tiktoken(tmp_path)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (directory / "tiktoken.model").write_text("".join(lines))
    ours = tokenizer_of(directory)
    theirs = tiktoken.Encoding(
        "own", pat_str=PATTERN, mergeable_ranks=dict(zip(tokens, range(260), strict=True)), special_tokens={}
    )
    for text in ("xyz", "xyza", "abcd", "abc", "aab bcd ABCd"):
        assert ours.encode(text).ids == theirs.encode(text)
    assert ours.encode("xyz").ids == [258]


def test_special_tokens_are_what_the_config_calls_them(ours: Tokenizer) -> None:
    """Others that it lists are tokens, too, and stay in an answer's text."""
    flags = {str(token): token.special for token in ours.get_added_tokens_decoder().values()}
    assert flags["[EOS]"] and flags["<|reserved_token_6002|>"] and not flags["<|tool_call_begin|>"]
    assert ours.decode([VOCABULARY_TOKENS, VOCABULARY_TOKENS + 3]) == "<|tool_call_begin|>"


def test_a_type_whose_pattern_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"models of type qwen cut texts is in code of their own, .*known: kimi_k2"):
        tokenizer_of(models.tiktoken(tmp_path, kind="qwen"))


@pytest.mark.parametrize("lines", ["YQ== 1\n", "YQ==\n", "? 0\n", "YQ== 0\nYQ== 1\n"])
def test_a_file_that_is_none_is_refused(lines: str, tmp_path: Path) -> None:
    directory = models.tiktoken(tmp_path)
    (directory / "tiktoken.model").write_text(lines)
    with pytest.raises(ModelError, match=r"tiktoken\.model cannot be read: "):
        tokenizer_of(directory)
