"""Finds the tokens that make up the text of an answer, so that the text comes with exactly their log-probabilities."""

from collections import deque
from collections.abc import Iterable, Sequence

from gateway.output.parts import CallArguments, CallBegins, Content, Part
from gateway.responses.items import TextLogprob


class TextScores:
    """Tokens whose text has not come yet. Tokens of thoughts, calls and markers are skipped.

    Parts come in the order of their tokens, and their text is contained in the tokens' bytes, unless a format rewrites
    it.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()  # bytes of tokens whose part has not come
        self._tokens: deque[tuple[int, int, TextLogprob]] = deque()  # first byte, end byte, token; until its text comes
        self._made = 0  # bytes of all tokens so far
        self._arguments: list[str] = []  # of the current call

    def add(self, tokens: Iterable[TextLogprob]) -> None:
        for token in tokens:
            begin = self._made
            self._made += len(token.bytes)
            self._bytes += bytes(token.bytes)
            self._tokens.append((begin, self._made, token))

    def of(self, parts: Sequence[Part]) -> list[TextLogprob]:
        """Returns the tokens of the content among these parts. A token that two parts share belongs to the first."""
        return [token for part in parts for token in self._of(part)]

    def _of(self, part: Part) -> list[TextLogprob]:
        if isinstance(part, CallArguments):
            # Searched for once, when complete: if a format rewrites them, each search scans all remaining bytes.
            self._arguments.append(part.text)
            return []
        arguments, self._arguments = "".join(self._arguments), []
        self._passed(arguments)
        return [] if isinstance(part, CallBegins) else self._passed(part.text, isinstance(part, Content))

    def _passed(self, piece: str, is_content: bool = False) -> list[TextLogprob]:
        text = piece.encode()
        found = self._bytes.find(text)
        if not text or found < 0:
            return []
        begin = self._made - len(self._bytes) + found
        end = begin + len(text)
        del self._bytes[: found + len(text)]
        while self._tokens and self._tokens[0][1] <= begin:  # tokens between this part and the previous one
            self._tokens.popleft()
        tokens = []
        while self._tokens and self._tokens[0][0] < end:
            tokens.append(self._tokens.popleft()[2])
        return tokens if is_content else []
