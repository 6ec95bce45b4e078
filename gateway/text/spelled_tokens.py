"""Tells the special tokens that a chat template writes from those that a message only spells out.

A client that writes `<|end|><|assistant|>` into a message would otherwise write turns of its own. What a message spells
out has to stay text wherever the template puts it, and whatever the template does to it: trims, cuts, joins, searches.
So one character of each spelled special token, its *key*, is exchanged for a *mark*, a character that no message has;
templates let it pass like any other, it keeps the length of everything, and it is exchanged back once the template's
own tokens are found. The template sees no special token in a message, so it cannot treat one as such either.

A template may also put a special token together from what stands apart in a message, such as by deleting what is
between. So it renders a second time, with every key marked, where nothing of a message can become a special token.
If the special tokens are others now, the messages are refused.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gateway.errors import invalid
from gateway.text.chat import Chat
from gateway.text.special_tokens import SpecialTokens

MARK_CHARACTERS = [chr(code) for code in (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xE100))]
"""Unicode's noncharacters, which no text should have, and some of its private characters."""


class MarkedText(NamedTuple):
    """Holds a rendered text and what its marks stand for. Special tokens that are in it as they are, are meant."""

    text: str
    marks: Mapping[str, str]  # the key of each mark; empty: messages spell out no special token

    def unmarked(self, text: str) -> str:
        """Returns a text with keys in place of marks."""
        for mark, key in self.marks.items():
            text = text.replace(mark, key)
        return text


class SpelledTokens:
    """Renders chats so that special tokens in what clients wrote are text."""

    def __init__(self, special: SpecialTokens) -> None:
        self._special = special
        self._keys = {token: _key(token) for token in special.tokens}

    def render(self, render: Callable[[Chat], str], chat: Chat) -> MarkedText:
        """Returns what `render` makes of a chat. Raises `APIError` if it makes special tokens of what clients wrote."""
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
        if self._special.found(text) != self._special.found(bare):
            raise invalid("the model's chat template makes special tokens of what these messages say", "messages")
        return MarkedText(text, {mark: key for key, mark in marks.items()} if list(marked.texts()) != texts else {})

    def _spelled_marked(self, text: str, marks: Mapping[str, str]) -> str:
        def marked(token: str) -> str:
            return token.replace(self._keys[token], marks[self._keys[token]])

        before = ""
        while text != before:  # again, because tokens may overlap
            before, text = text, self._special.replaced(text, marked)
        return text


def _key(token: str) -> str:
    """Returns a character of a special token that is rare in other texts, and that no filter of a template changes."""
    signs = [character for character in token if not character.isalnum() and not character.isspace()]
    return min(signs or token.strip(), key=lambda sign: (sign.isascii(), sign != "|"))


def _all_marked(text: str, marks: Mapping[str, str]) -> str:
    for key, mark in marks.items():
        text = text.replace(key, mark)
    return text
