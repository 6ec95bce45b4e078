"""A tokenizer.model gives the ids and texts that SentencePiece gives."""

import io
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from transformers import LlamaTokenizer

from checkpoints.vocabulary.reading import tokenizer_of
from contracts.errors import ModelError
from tests.checkpoints.vocabulary.models import CODE, DATA, TEXTS, sentencepiece, texts

PUBLISHED = "mistral_instruct_tokenizer_240323.model.v3"
WORDS = [*TEXTS[6:], *CODE.splitlines(), *Path(__file__).read_text().splitlines()]


def trained(**settings: Any) -> bytes:
    out = io.BytesIO()
    given = {"vocab_size": 400, "minloglevel": 2, "hard_vocab_limit": False} | settings
    SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in WORDS if line.strip()]), model_writer=out, **given
    )
    return out.getvalue()


def plain(text: str) -> bool:
    """Tells whether each sign of a text stands alone: the libraries rewrite those otherwise that are one together."""
    return "\r\n" not in text and not any(
        unicodedata.combining(sign) or unicodedata.category(sign) in ("Me", "Mc") for sign in text
    )


def compare(directory: Path, rewrites: bool = False) -> None:
    theirs = SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    ours = tokenizer_of(directory)
    for text in texts():
        if rewrites and not plain(text):
            continue
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text), repr(text)
        if theirs.unk_id() not in ids:
            assert ours.decode(ids).strip() == theirs.decode(ids).strip()


@pytest.mark.parametrize("name", ["tokenizer.model.v1", PUBLISHED])
def test_published_models(name: str, tmp_path: Path) -> None:
    compare(sentencepiece(tmp_path, DATA / name))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
@pytest.mark.parametrize("squeezed", [True, False])
def test_small_models_of_each_kind(kind: str, rule: str, squeezed: bool, tmp_path: Path) -> None:
    for bytes_too in (True, False):
        made = trained(
            model_type=kind, normalization_rule_name=rule, remove_extra_whitespaces=squeezed, byte_fallback=bytes_too
        )
        compare(sentencepiece(tmp_path / str(bytes_too), made), rewrites=rule != "identity")
    compare(sentencepiece(tmp_path / "bare", trained(model_type=kind, add_dummy_prefix=False)), rewrites=True)


def test_parts_behind_special_tokens_are_transformers(tmp_path: Path) -> None:
    """Where the config is not of the legacy kind: they have no space in front of them."""
    directory = sentencepiece(
        tmp_path, DATA / PUBLISHED, legacy=False, add_bos_token=True, tokenizer_class="LlamaTokenizer"
    )
    theirs = LlamaTokenizer.from_pretrained(directory)
    ours = tokenizer_of(directory)
    for text in ("<s>[INST] Hi[/INST] there</s>", "Hi<s>there ", "🙂é"):
        assert ours.encode(text).ids == theirs(text)["input_ids"]


@pytest.mark.parametrize("body", [b"", b"\x0a", b"{}", b"\x0a\x05hello", trained(model_type="char")[:200]])
def test_a_file_that_is_none_is_refused(body: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.model cannot be read: "):
        tokenizer_of(sentencepiece(tmp_path, body))


def test_a_kind_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="its model type 4 is neither Unigram nor BPE"):
        tokenizer_of(sentencepiece(tmp_path, trained(model_type="char")))
