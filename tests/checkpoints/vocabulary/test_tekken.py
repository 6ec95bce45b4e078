"""A tekken.json gives the ids that mistral-common gives, and special tokens theirs."""

import json
from pathlib import Path
from typing import Any

import pytest
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from checkpoints.vocabulary.reading import tokenizer_of
from checkpoints.vocabulary.tekken import VERSION_3_SPECIAL_TOKENS
from contracts.errors import ModelError
from tests.checkpoints.vocabulary.models import LISTED, tekken, texts


@pytest.mark.parametrize("listed", [True, False], ids=["its own special tokens", "those of version 3"])
def test_ids_are_mistral_commons(listed: bool, tmp_path: Path) -> None:
    directory = tekken(tmp_path, listed=listed, special=20 if listed else 30)
    ours = tokenizer_of(directory)
    theirs = Tekkenizer.from_file(directory / "tekken.json")
    for text in texts():
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text, bos=False, eos=False), repr(text)
        assert ours.decode(ids) == text
    assert ours.encode("a b").ids == theirs.encode("a b", bos=True, eos=False)
    assert ours.get_vocab_size() == theirs.n_words
    for id, text in enumerate(LISTED if listed else VERSION_3_SPECIAL_TOKENS):
        assert ours.encode(f"a{text}b", add_special_tokens=False).ids[1] == id == theirs.get_control_token(text)


def test_the_whole_vocabulary_has_mistral_commons_spelling(tmp_path: Path) -> None:
    """Every token alone, and one after the other."""
    directory = tekken(tmp_path, tokens=20_000)
    ours, theirs = tokenizer_of(directory), Tekkenizer.from_file(directory / "tekken.json")
    for id in range(20, 20_020):
        data = theirs.id_to_byte_piece(id, SpecialTokenPolicy.KEEP)
        if b"\xef\xbf\xbd" not in data and (text := data.decode(errors="replace")).encode() == data:
            assert ours.decode([id]) == text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda made: made.pop("config"), "config"),
        (lambda made: made["vocab"].reverse(), "not in the order of their ranks"),
        (lambda made: made["special_tokens"].append({"rank": 99, "token_str": "x"}), "beyond the 20"),
        (lambda made: made["special_tokens"].append({"rank": 19, "token_str": "er"}), "'er' is there twice"),
        (lambda made: made["config"].update(pattern="["), "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    path = tekken(tmp_path) / "tekken.json"
    made = json.loads(path.read_text())
    change(made)
    path.write_text(json.dumps(made))
    with pytest.raises(ModelError, match=words) as refused:
        tokenizer_of(tmp_path)
    assert str(refused.value).startswith(f"--model: {path} cannot be read: ")
