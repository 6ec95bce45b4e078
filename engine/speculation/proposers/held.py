"""Tracks which tokens have KV of the draft model, by what the draft itself has written into blocks.

That KV lies in tensors of its own, at the numbers of the target's blocks, and nobody else writes there. So a block
still has what the draft last wrote into it, whatever became of its number: blocks that are landed in, copied, swapped,
shared or given to another sequence need not be followed. Each carries a mark: the key of the whole text up to its end,
or the sequence that is at work on it. What the draft finds under its text's own keys it need not compute, be it an
earlier sequence's with the same prompt.

A key is a hash of 64 bits. Two texts with one key would give wrong guesses, and these change nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.kv.spec import blocks_for
from engine.backends.adjusting.recent import Recent
from engine.speculation.verify.verification import common_prefix


@dataclass
class _Text:
    """Keeps what the draft has written of one sequence."""

    tokens: list[int]  # the sequence's own list: another one is another text
    keys: list[int] = field(default_factory=list)  # of its whole blocks
    held: int = 0  # leading tokens whose KV was written
    ahead: Sequence[int] = ()  # guesses behind those, whose KV was written too
    blocks: list[int] = field(default_factory=list)  # where all that is
    whole: int = 0  # of these, the leading ones that were found under their keys,
    seen: int = -1  # when `HeldKV.changes` was this


class HeldKV:
    """Marks blocks of `block_tokens` tokens."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._marks: dict[int, int] = {}  # by block: the key of what it holds, or ~ the sequence at work on it
        self._texts: Recent[_Text] = Recent()
        self._changes = 0  # marks that went over to another text

    def held(self, sequence: int, tokens: list[int], came: Sequence[int], table: list[int]) -> int:
        """Returns how many leading tokens of a sequence have their KV in the blocks of its `table`.

        Its text is `tokens`, and what just `came`; the last token of all is never counted.
        """
        text = self._texts.use(sequence)
        if text is None or text.tokens is not tokens:
            text = _Text(tokens)
            self._texts.keep(sequence, text)
        size = self._block_tokens
        for first in range(len(text.keys) * size, len(tokens) - size + 1, size):
            text.keys.append(hash((text.keys[-1] if first else 0, *tokens[first : first + size])))
        whole = self._whole(text, table)
        held = whole * size
        written = text.held + common_prefix(text.ahead, [*tokens[text.held :], *came])
        for at, (block, before) in enumerate(zip(table[whole:], text.blocks[whole:], strict=False), whole):
            if written <= held or block != before or self._marks.get(block) != ~sequence:
                break
            held = min(written, (at + 1) * size)
        for at in range(whole, min(held // size, len(text.keys))):
            self._marks[table[at]] = text.keys[at]
        return min(held, len(tokens) + len(came) - 1)

    def wrote(self, sequence: int, table: list[int], start: int, end: int, ahead: Sequence[int]) -> None:
        """Notes that KV of a sequence's tokens from `start` to `end` was written, and of guesses behind them."""
        text = self._texts.use(sequence)
        assert text is not None and start <= end, "written before anybody asked what is there"
        last = blocks_for(end + len(ahead), self._block_tokens)
        assert last <= len(table), "written beyond the table"
        for block in table[start // self._block_tokens : last]:
            before = self._marks.get(block)
            self._changes += before not in (None, ~sequence)
            self._marks[block] = ~sequence
        text.held, text.ahead, text.blocks = end, ahead, table[:last]

    def trim(self, sequences: int) -> None:
        """Forgets sequences that are long gone, where more are kept than the `sequences` of a step and some beside."""
        self._texts.forget(sequences)

    def _whole(self, text: _Text, table: list[int]) -> int:
        whole = text.whole
        if text.seen != self._changes or table[:whole] != text.blocks[:whole]:
            whole = 0
        for key, block in zip(text.keys[whole:], table[whole:], strict=False):
            if self._marks.get(block) != key:
                break
            whole += 1
        text.whole, text.seen = whole, self._changes
        return whole
