"""Reads a model's tokenizer as transformers has it, for a gateway, for grammars, and to compare vocabularies."""

from pathlib import Path

from tokenizers import Tokenizer

from core.errors import ModelError
from core.vocabulary.settings import added_tokens, settings_of

FILE = "tokenizer.json"


def tokenizer_of(directory: Path) -> Tokenizer:
    """Returns the tokenizer, with the tokens that only the files beside it know. Raises `ModelError`."""
    path = directory / FILE
    if not path.is_file():
        raise ModelError(f"--model: {directory} has no {FILE}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(f"--model: {path} cannot be read: {error}") from None
    there = tokenizer.get_added_tokens_decoder().values()
    try:
        tokenizer.add_tokens(added_tokens(settings_of(directory), list(there)))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ModelError(f"--model: {directory}: its special tokens cannot be read: {error!r}") from None
    return tokenizer
