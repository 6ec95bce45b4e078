"""Reads a model's tokenizer as its own library has it, for a gateway, for grammars, and to compare vocabularies.

Whatever file it is in, it becomes a tokenizer of one library, which knows the same ids in every place: tokenizer.json
as it is, the others as `tekken.py`, `tiktoken.py` and `sentencepiece.py` convert them. None of their libraries is
needed for that.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from checkpoints.vocabulary.files import HUGGING_FACE_FILE, TEKKEN_FILE, TIKTOKEN_FILE, tokenizer_file
from checkpoints.vocabulary.sentencepiece import sentencepiece_tokenizer
from checkpoints.vocabulary.settings import added_tokens, read_object, settings_of
from checkpoints.vocabulary.tekken import tekken_tokenizer
from checkpoints.vocabulary.tiktoken import tiktoken_tokenizer
from contracts.errors import ModelError


def tokenizer_of(directory: Path) -> Tokenizer:
    """Returns the tokenizer, with the tokens that only the files beside it know. Raises `ModelError`."""
    path, settings = tokenizer_file(directory), settings_of(directory)
    try:
        tokenizer = _read(path, settings)
    except Exception as error:  # the library raises nothing more specific, and files may be anything
        raise ModelError(f"--model: {path} cannot be read: {error}") from None
    there = tokenizer.get_added_tokens_decoder().values()
    try:
        tokenizer.add_tokens(added_tokens(settings, list(there)))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ModelError(f"--model: {directory}: its special tokens cannot be read: {error!r}") from None
    return tokenizer


def _read(path: Path, settings: dict[str, Any]) -> Tokenizer:
    if path.name == HUGGING_FACE_FILE:
        return Tokenizer.from_file(str(path))
    if path.name == TEKKEN_FILE:
        return tekken_tokenizer(path)
    if path.name == TIKTOKEN_FILE:
        return tiktoken_tokenizer(path, read_object(path.parent / "config.json"), settings)
    return sentencepiece_tokenizer(path, settings)
