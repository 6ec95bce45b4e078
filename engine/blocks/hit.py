"""Cached blocks of a text in one pool: where a table may begin, in place of computing or landing KV."""

from typing import NamedTuple

from engine.blocks.prefix_cache import Node


class Hit(NamedTuple):
    """Cached blocks of a text in one pool."""

    nodes: list[Node]  # whole blocks, from block `first` of the text on
    partial: Node | None = None  # a block that shares some of the next tokens
    part: int = 0  # number of leading tokens that it shares
    first: int = 0  # blocks before this one are outside the window

    @property
    def whole(self) -> int:
        """Leading blocks of the text that are cached whole, or not needed."""
        return self.first + len(self.nodes)

    def tokens(self, block_tokens: int) -> int:
        return self.whole * block_tokens + self.part

    def cut(self, tokens: int, block_tokens: int) -> "Hit":
        """Returns the hit for the first `tokens` tokens only, all of which must be in it."""
        whole, part = divmod(tokens, block_tokens)
        partial = self.nodes[whole] if whole < len(self.nodes) else self.partial
        return Hit(self.nodes[:whole], partial if part else None, part)


NO_HIT = Hit([])
