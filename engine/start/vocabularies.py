"""Compares the vocabularies of two models: one's tokens mean something to the other only if their ids are the same."""

from pathlib import Path

from checkpoints.vocabulary.reading import tokenizer_of
from contracts.errors import ConfigError


def refuse_other_vocabulary(option: str, given: str, own: Path, target: Path) -> None:
    """Raises `ConfigError`, naming both models, where the model in `own` has other tokens than that in `target`.

    `option` and `given` say who asked for it. Sizes of embeddings may differ: some are padded, and nobody says padding.
    Raises `ModelError` for a tokenizer that cannot be read.
    """
    ours, theirs = (tokenizer_of(each).get_vocab(with_added_tokens=True) for each in (own, target))
    if ours == theirs:
        return
    names = f"{own.name} has another vocabulary than {target.name}"
    if len(ours) != len(theirs):
        raise ConfigError(option, given, f"{names}: {len(ours)} tokens, not {len(theirs)}")
    token = min(token for token in ours if ours[token] != theirs.get(token))
    there = f"{theirs[token]} there" if token in theirs else "unknown there"
    raise ConfigError(option, given, f"{names}: the token {token!r:.40} is {ours[token]} here, and {there}")
