"""Encodes text so that only special tokens of the chat template become special token ids, and no text of a client.

This is a second tokenizer with the same model, normalizer and pre-tokenizer, but without special tokens: the template's
are replaced by random placeholders. So all text between two special tokens, the client's and the template's together,
is encoded at once, and gets the same ids as from the model's tokenizer.
"""

import secrets

from tokenizers import AddedToken, Tokenizer

from contracts.errors import ModelError
from gateway.text.special_tokens import SpecialTokens
from gateway.text.spelled_tokens import MarkedText

PLACEHOLDER_BYTES = 16


class LiteralTokenizer:
    """Makes `tokenizer` from a model's `own`, with which it shares the vocabulary, and translates texts and ids.

    `unknown` is the token for unknown characters, or None. Raises `ModelError` if the vocabulary has no free ids for
    placeholders.
    """

    def __init__(self, own: Tokenizer, unknown: str | None) -> None:
        added = sorted(own.get_added_tokens_decoder().items())
        special = {id: token.content for id, token in added if token.special and token.content.strip()}
        self.special = SpecialTokens(special.values())
        self._placeholders = {token: secrets.token_hex(PLACEHOLDER_BYTES) for token in self.special.tokens}
        names = {id: self._placeholders.get(token.content, token.content) for id, token in added}
        self.tokenizer = _bare(own)
        self.tokenizer.add_tokens([_renamed(token, names[id]) for id, token in added])
        fresh = [self.tokenizer.token_to_id(name) for name in self._placeholders.values()]
        if any(own.model.id_to_token(id) is not None for id in fresh):
            raise ModelError("--model: the vocabulary's ids have gaps, which only --spelled-tokens tokens can serve")
        # The model's ids for ids that have another meaning here.
        self._ids = {self.tokenizer.token_to_id(name): [id] for id, name in names.items()}
        for id, token in special.items():
            if own.model.id_to_token(id) == token != unknown:
                self._ids[id] = self._apart(token, set(special)) or [id]
        normalized = {id for id, token in added if token.normalized}
        self._normalized = {id: token for id, token in special.items() if id in normalized and token != unknown}

    def written(self, prompt: MarkedText) -> str:
        """Returns the text to encode, with placeholders for the template's special tokens."""
        return prompt.unmarked(self.special.replaced(prompt.text, self._placeholders.__getitem__))

    def restored(self, ids: list[int]) -> list[int]:
        """Returns the model's ids for the ids of `tokenizer`."""
        return [id for found in ids for id in self._ids.get(found, (found,))]

    def is_forged(self, text: str, ids: list[int]) -> bool:
        """Returns whether the tokenizer found special tokens in a text that does not contain them.

        Some tokenizers search normalized text, in which other characters may have become a special token.
        """
        return any(ids.count(id) > text.count(token) for id, token in self._normalized.items())

    def _apart(self, token: str, special: set[int]) -> list[int]:
        """Returns ids that spell a special token in two pieces.

        Some vocabularies, such as Unigram's, contain special tokens as ordinary pieces, which the model finds by
        itself.
        """
        for cut in range(1, len(token)):
            halves = token[:cut], token[cut:]
            ids = [found.id for half in halves for found in self.tokenizer.model.tokenize(half)]
            if special.isdisjoint(ids):
                return ids
        return []


def _bare(tokenizer: Tokenizer) -> Tokenizer:
    bare = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        bare.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        bare.pre_tokenizer = tokenizer.pre_tokenizer
    return bare


def _renamed(token: AddedToken, name: str) -> AddedToken:
    return AddedToken(
        name,
        single_word=token.single_word and name == token.content,  # a placeholder may touch other text
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized and name == token.content,
        special=False,
    )
