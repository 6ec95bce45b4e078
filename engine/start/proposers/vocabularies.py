"""Checks that two models have the same vocabulary, so that token ids mean the same to both."""

from pathlib import Path

from checkpoints.vocabulary.reading import tokenizer_of
from contracts.errors import ConfigError


def refuse_other_vocabulary(option: str, value: str, own: Path, target: Path) -> None:
    """Raises `ConfigError` if the models in `own` and `target` have different tokens.

    The error names `option` and its `value`. Embeddings may differ in size, since some are padded. Raises
    `ModelError` for a tokenizer that cannot be read.
    """
    ours, theirs = (tokenizer_of(each).get_vocab(with_added_tokens=True) for each in (own, target))
    if ours == theirs:
        return
    names = f"{own.name} has another vocabulary than {target.name}"
    if len(ours) != len(theirs):
        raise ConfigError(option, value, f"{names}: {len(ours)} tokens, not {len(theirs)}")
    token = min(token for token in ours if ours[token] != theirs.get(token))
    there = f"{theirs[token]} there" if token in theirs else "unknown there"
    raise ConfigError(option, value, f"{names}: the token {token!r:.40} is {ours[token]} here, and {there}")
