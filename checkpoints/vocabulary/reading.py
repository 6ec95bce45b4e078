"""Reads a model's tokenizer from any supported file into the `tokenizers` library, with the same ids everywhere.

tokenizer.json is read directly; `tekken.py`, `tiktoken.py` and `sentencepiece.py` convert the other files, without
their libraries.
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
    """Returns the tokenizer, with tokens that only the settings files list. Raises `ModelError`."""
    path, settings = tokenizer_file(directory), settings_of(directory)
    try:
        tokenizer = _read(path, settings)
    except Exception as error:  # the library raises nothing more specific
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
