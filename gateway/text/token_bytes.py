"""Maps tokens to their bytes, so that a client can align log-probabilities with a text."""

import re
from collections.abc import Callable

from checkpoints.vocabulary.alphabet import byte_alphabet

_BYTE_TOKEN_REGEX = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a token for one byte, in some vocabularies
SPACE_SYMBOL = "\u2581"  # spells a space in such vocabularies


class TokenBytes:
    """Looks up the bytes of tokens. `spelled` returns a token as the vocabulary has it, None for unknown ids.

    Added tokens (`is_added`) stand for their own characters.
    """

    def __init__(self, spelled: Callable[[int], str | None], is_added: Callable[[int], bool], byte_level: bool) -> None:
        self._spelled = spelled
        self._is_added = is_added
        self._alphabet = byte_alphabet() if byte_level else {}
        self._known: dict[int, bytes] = {}

    def of(self, token: int) -> bytes:
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._bytes(token)
        return found

    def name(self, token: int) -> str:
        """Returns a token's text. A token without whole characters is named by its bytes or its id."""
        data = self.of(token)
        if not data:
            return f"token_id:{token}"
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _bytes(self, token: int) -> bytes:
        piece = self._spelled(token)
        if piece is None:
            return b""
        if self._is_added(token):
            return piece.encode()
        if self._alphabet:
            return bytes([self._alphabet[sign] for sign in piece if sign in self._alphabet])
        if byte := _BYTE_TOKEN_REGEX.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return piece.replace(SPACE_SYMBOL, " ").encode()
