"""Makes a tokenizer of tokens that are bytes with ranks, as tiktoken has them and mistral-common's Tekken.

Such a tokenizer cuts a text by a pattern. A piece that is a token is that token; in other pieces the pair of neighbours
whose bytes together have the lowest rank is merged, again and again. So every pair that makes a token is a merge, and
merges come in the order of what they make.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from checkpoints.vocabulary.alphabet import byte_alphabet, spelled


def ranked_tokenizer(tokens: Sequence[bytes], pattern: str, first: int, special: Mapping[int, AddedToken]) -> Tokenizer:
    """Returns the tokenizer of `tokens` in the order of their ranks, whose ids begin at `first`.

    `pattern` finds the pieces of a text; `special` are tokens by id, before and behind these.
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
    """Makes a token that is found as it is written."""
    return AddedToken(text, normalized=False, special=True)


def _merges(words: Sequence[str]) -> list[tuple[str, str]]:
    """Returns every pair of tokens that makes a token, in the order of what they make."""
    ranks = {word: rank for rank, word in enumerate(words)}
    found: list[tuple[str, str]] = []
    for word in words:
        pairs = [(word[:cut], word[cut:]) for cut in range(1, len(word))]
        known = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        found += sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return found
