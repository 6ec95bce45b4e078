"""Makes a tokenizer from byte sequences with ranks, the format of tiktoken and mistral-common's Tekken.

A pattern splits a text into pieces. A piece that is a token becomes that token; in other pieces, the neighbouring pair
whose concatenation has the lowest rank is merged, repeatedly. So every pair that makes a token is a merge, ordered by
the rank of its result.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from checkpoints.vocabulary.alphabet import byte_alphabet, spelled


def ranked_tokenizer(tokens: Sequence[bytes], pattern: str, first: int, special: Mapping[int, AddedToken]) -> Tokenizer:
    """Returns the tokenizer of `tokens`, ordered by rank, with ids from `first` on.

    `pattern` matches the pieces of a text; `special` are tokens by id, before and after the others.
    """
    alphabet = {byte: sign for sign, byte in byte_alphabet().items()}
    words = [spelled(token, alphabet) for token in tokens]
    vocabulary: dict[str, int] = {word: first + rank for rank, word in enumerate(words)}
    texts = {str(token): id for id, token in special.items()}
    clashing = next((text for text in texts if text in vocabulary), None)
    if clashing is not None or len(vocabulary) != len(words):
        raise ValueError(f"the token {clashing!r} is there twice" if clashing else "a token is there twice")
    model: Any = models.BPE(vocabulary | texts, _merges(words), ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([special[id] for id in sorted(special)])
    return tokenizer


def special_token(text: str) -> AddedToken:
    return AddedToken(text, normalized=False, special=True)


def _merges(words: Sequence[str]) -> list[tuple[str, str]]:
    ranks = {word: rank for rank, word in enumerate(words)}
    found: list[tuple[str, str]] = []
    for word in words:
        pairs = [(word[:cut], word[cut:]) for cut in range(1, len(word))]
        known = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        found += sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return found
