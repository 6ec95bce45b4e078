"""Numbers that stand for texts: the KV of a position in a model of the block manager."""

from collections.abc import Iterable

TENANTS = ("", "other")


class TextNumbers:
    """A number for each text, which stands for all of its tokens and for its tenant: equal numbers are equal texts."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, int], int] = {}  # (text before, token) -> text
        self._before: dict[int, tuple[int, int]] = {}  # text -> (text before, token)

    def root(self, tenant: int) -> int:
        """Returns the number of the empty text of a tenant, which is given by its index in `TENANTS`."""
        return -1 - tenant

    def salt(self, root: int) -> str:
        return TENANTS[-1 - root]

    def of(self, before: int, tokens: Iterable[int]) -> list[int]:
        """Returns the number of each text that goes on from the text `before` by these tokens, one after another."""
        numbers = []
        for token in tokens:
            number = self._texts.setdefault((before, token), len(self._texts) + 1)
            self._before[number] = before, token
            numbers.append(before := number)
        return numbers

    def tokens_of(self, text: int) -> tuple[list[int], int]:
        """Returns the tokens of a text, and the number of its tenant's empty text."""
        tokens = []
        while text > 0:
            text, token = self._before[text]
            tokens.append(token)
        assert text >= -len(TENANTS), "KV that is of no text"
        return tokens[::-1], text
