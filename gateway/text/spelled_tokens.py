"""Separates the special tokens that a chat template writes from those that a message spells out.

A client that writes `<|end|><|assistant|>` into a message could otherwise forge turns. A spelled token must stay text
wherever the template puts it, and however the template trims, cuts, joins or searches it. So one character of each
spelled special token, its *key*, is replaced by a *mark*, a character that no message contains. Templates treat a mark
like any other character, and it keeps all lengths. After the template's own special tokens are found, marks become keys
again. The template sees no special token in a message, so it cannot treat one specially either.

A template may also assemble a special token from separate pieces of a message, for example by deleting text between
them. So it renders a second time with every key marked, which makes that impossible. If the special tokens then differ,
the messages are refused.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gateway.errors import invalid
from gateway.text.chat import Chat
from gateway.text.special_tokens import SpecialTokens

MARK_CHARACTERS = [chr(code) for code in (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xE100))]
"""Unicode's noncharacters, which no text should have, and some of its private characters."""


class MarkedText(NamedTuple):
    """A rendered text with its marks. Special tokens in it are the template's own."""

    text: str
    marks: Mapping[str, str]  # the key of each mark; empty: no message spells out a special token

    def unmarked(self, text: str) -> str:
        for mark, key in self.marks.items():
            text = text.replace(mark, key)
        return text


class SpelledTokens:
    """Renders chats so that special tokens in the client's text stay text."""

    def __init__(self, special: SpecialTokens) -> None:
        self._special = special
        self._keys = {token: _key(token) for token in special.tokens}

    def render(self, render: Callable[[Chat], str], chat: Chat) -> MarkedText:
        """Returns the rendered chat. Raises `APIError` if the template makes special tokens of the client's text."""
        texts = list(chat.texts())
        keys = sorted({key for key in self._keys.values() if any(key in text for text in texts)})
        if not keys:
            return MarkedText(render(chat), {})
        free = [mark for mark in MARK_CHARACTERS if not any(mark in text for text in texts)]
        if len(free) < len(keys):
            raise invalid(f"messages hold {len(MARK_CHARACTERS) - len(free)} private characters of Unicode", "messages")
        marks = dict(zip(keys, free, strict=False))
        marked = chat.changed(lambda text: self._spelled_marked(text, marks))
        text, bare = render(marked), render(chat.changed(lambda text: _all_marked(text, marks)))
        if self._special.ids_in(text) != self._special.ids_in(bare):
            raise invalid("the model's chat template turns text of these messages into special tokens", "messages")
        return MarkedText(text, {mark: key for key, mark in marks.items()} if list(marked.texts()) != texts else {})

    def _spelled_marked(self, text: str, marks: Mapping[str, str]) -> str:
        def marked(token: str) -> str:
            return token.replace(self._keys[token], marks[self._keys[token]])

        before = ""
        while text != before:  # repeated, because tokens may overlap
            before, text = text, self._special.replaced(text, marked)
        return text


def _key(token: str) -> str:
    """Returns a character of a special token that is rare in other text, and that no template filter changes."""
    signs = [character for character in token if not character.isalnum() and not character.isspace()]
    return min(signs or token.strip(), key=lambda sign: (sign.isascii(), sign != "|"))


def _all_marked(text: str, marks: Mapping[str, str]) -> str:
    for key, mark in marks.items():
        text = text.replace(key, mark)
    return text
