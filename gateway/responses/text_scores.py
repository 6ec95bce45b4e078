"""Finds which tokens the text of an answer consists of, so that it comes with their log-probabilities and no others."""

from collections import deque
from collections.abc import Iterable, Sequence

from gateway.output.parts import CallArguments, CallBegins, Content, Part
from gateway.responses.items import TextLogprob


class TextScores:
    """Holds tokens whose text has not come yet: thoughts, calls and markers are in between, and are left out.

    Parts come in the order of their tokens, and their text is in the tokens' bytes, but for what a format rewrites.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()  # whose part has not come
        self._tokens: deque[tuple[int, int, TextLogprob]] = deque()  # from which byte to which, of those not told of
        self._made = 0  # bytes in all
        self._arguments: list[str] = []  # of the call that is read

    def add(self, tokens: Iterable[TextLogprob]) -> None:
        """Adds tokens that were made."""
        for token in tokens:
            begin = self._made
            self._made += len(token.bytes)
            self._bytes += bytes(token.bytes)
            self._tokens.append((begin, self._made, token))

    def of(self, parts: Sequence[Part]) -> list[TextLogprob]:
        """Returns the tokens of the content among these parts. A token of two parts is the first one's."""
        return [token for part in parts for token in self._of(part)]

    def _of(self, part: Part) -> list[TextLogprob]:
        if isinstance(part, CallArguments):
            # Looked for once, when all are here: where a format rewrites them, each look goes through all that is left.
            self._arguments.append(part.text)
            return []
        arguments, self._arguments = "".join(self._arguments), []
        self._passed(arguments)
        return [] if isinstance(part, CallBegins) else self._passed(part.text, isinstance(part, Content))

    def _passed(self, said: str, is_content: bool = False) -> list[TextLogprob]:
        """Passes the tokens of a text, and returns them if it is content."""
        text = said.encode()
        found = self._bytes.find(text)
        if not text or found < 0:
            return []
        begin = self._made - len(self._bytes) + found
        end = begin + len(text)
        del self._bytes[: found + len(text)]
        while self._tokens and self._tokens[0][1] <= begin:  # they are between this part and the one before
            self._tokens.popleft()
        tokens = []
        while self._tokens and self._tokens[0][0] < end:
            tokens.append(self._tokens.popleft()[2])
        return tokens if is_content else []
