"""Turns token ids into text as they arrive. No half character is sent; all pieces make the text of all ids together.

Where tokens are bytes (`BytePieces`), an incremental UTF-8 decoder is exact and costs the same for every token. Where a
token's text depends on its neighbours (`WindowDetokenizer`), the last few tokens are decoded with and without the new
token, and the difference is the new text.
"""

import codecs
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from checkpoints.vocabulary.alphabet import byte_alphabet

Piece = Callable[[int], str | None]  # a token's spelling in the vocabulary; None for special tokens
REPLACEMENT_CHARACTER = "\ufffd"  # stands for bytes that are no character
MAX_UTF8_BYTES = 4  # so a character has at most as many tokens


class Detokenizer(Protocol):
    """Turns the tokens of one answer into text."""

    def push(self, token: int) -> str:
        """Returns the text that this token completes, often empty."""

    def text_of(self, tokens: Sequence[int]) -> str:
        """Returns the text that these tokens complete."""

    def flush(self) -> str:
        """Returns the remaining text at the end. An incomplete character becomes a replacement character."""


class BytePieces:
    """Looks up the bytes of each token of a byte-level vocabulary, and caches them."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._alphabet = byte_alphabet()
        self._known: dict[int, bytes] = {}
        self.texts: dict[int, str] = {}  # texts of known tokens that are whole characters

    def bytes_of(self, token: int) -> bytes:
        """Returns the bytes of a token; none for special tokens and unknown ids."""
        found = self._known.get(token)
        if found is None:
            found = self._spelled(self._piece(token) or "")
            self._known[token] = found
            with suppress(UnicodeDecodeError):  # a part of a character
                self.texts[token] = found.decode()
        return found

    def stream(self) -> Detokenizer:
        return _ByteStream(self)

    def _spelled(self, piece: str) -> bytes:
        try:
            return bytes([self._alphabet[character] for character in piece])
        except KeyError:
            return piece.encode()  # an added token is its own text


class _ByteStream:
    """Decodes bytes as they arrive. Whole characters, the usual case, are looked up."""

    def __init__(self, pieces: BytePieces) -> None:
        self._pieces = pieces
        self._texts = pieces.texts
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begun = False  # whether a character is incomplete

    def push(self, token: int) -> str:
        if not self._begun and (text := self._texts.get(token)) is not None:
            return text
        text = self._decoder.decode(self._pieces.bytes_of(token))
        self._begun = bool(self._decoder.getstate()[0])
        return text

    def text_of(self, tokens: Sequence[int]) -> str:
        return self.push(tokens[0]) if len(tokens) == 1 else "".join([self.push(token) for token in tokens])

    def flush(self) -> str:
        self._begun = False
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """Detokenizer for all other decoders. The window begins with the tokens of the last completed text."""

    def __init__(self, decode: Callable[[list[int]], str], piece: Piece) -> None:
        self._decode = decode
        self._piece = piece
        self._window: list[int] = []
        self._settled = 0  # tokens of the window whose text was returned
        self._before = ""  # the text of these tokens
        self._broken = 0  # number of last tokens that may begin a character

    def push(self, token: int) -> str:
        if self._piece(token) is None:
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        self._broken = self._broken + 1 if text.endswith(REPLACEMENT_CHARACTER) else 0
        if 0 < self._broken < MAX_UTF8_BYTES:
            return ""  # may be the beginning of a character
        return self._advance(text)

    def text_of(self, tokens: Sequence[int]) -> str:
        return "".join([self.push(token) for token in tokens])

    def flush(self) -> str:
        return self._advance(self._decode(self._window)) if len(self._window) > self._settled else ""

    def _advance(self, text: str) -> str:
        fresh = text[len(self._before) :]
        if fresh:  # a token without text must not become the only context of the next
            self._window = self._window[self._settled :]
            self._before = self._decode(self._window)
            self._settled = len(self._window)
            self._broken = 0
        return fresh


class WithMarkers:
    """Writes some special tokens as text, such as a format's markers, which other detokenizers omit."""

    def __init__(self, fresh: Callable[[], Detokenizer], markers: Mapping[int, str]) -> None:
        self._fresh = fresh
        self._markers = markers
        self._text = fresh()  # detokenizer since the last marker

    def push(self, token: int) -> str:
        marker = self._markers.get(token)
        if marker is None:
            return self._text.push(token)
        before = self._text.flush()
        self._text = self._fresh()
        return before + marker

    def text_of(self, tokens: Sequence[int]) -> str:
        return "".join([self.push(token) for token in tokens])

    def flush(self) -> str:
        return self._text.flush()
