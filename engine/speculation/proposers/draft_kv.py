"""Tracks which tokens have draft-model KV, by marks of the blocks that the draft model has written.

The draft's KV is in separate tensors, indexed by the target's block numbers, and only the draft writes there. A block
therefore keeps the KV that the draft last wrote, whatever happens to its number: handoffs, copies, swaps, sharing and
reuse of blocks need not be tracked. Each block has a mark: the key of the whole text up to its end, or the sequence
that currently writes it. Blocks found under the keys of a text need not be computed again, even if an earlier sequence
with the same prompt wrote them.

A key is a hash of 64 bits. Two texts with the same key would give wrong draft tokens, which never change the output.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.kv.spec import blocks_for
from engine.backends.adjusting.recent import Recent
from engine.speculation.verify.verification import common_prefix


@dataclass
class _Text:
    """Draft-model KV of one sequence."""

    tokens: Sequence[int]  # the sequence's own array; another array is another text
    keys: list[int] = field(default_factory=list)  # of its whole blocks
    stored: int = 0  # leading tokens with KV
    drafts: Sequence[int] = ()  # draft tokens after them, also with KV
    blocks: list[int] = field(default_factory=list)  # blocks of that KV
    matching: int = 0  # leading blocks whose marks are the text's keys
    checked_at: int = -1  # value of `DraftKV._changes` at the last check


class DraftKV:
    """Knows for each sequence how many of its leading tokens have draft KV, by marks of blocks of `block_tokens`."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._marks: dict[int, int] = {}  # by block: the key of its text, or ~ the id of the sequence that writes it
        self._texts: Recent[_Text] = Recent()
        self._changes = 0  # number of marks that changed to another text

    def stored_tokens(self, sequence: int, tokens: Sequence[int], sampled: Sequence[int], table: list[int]) -> int:
        """Returns how many leading tokens of a sequence have draft KV in the blocks of its `table`.

        Its text is `tokens` followed by the newly `sampled` tokens; the last token is never counted.
        """
        text = self._texts.use(sequence)
        if text is None or text.tokens is not tokens:
            text = _Text(tokens)
            self._texts.keep(sequence, text)
        size = self._block_tokens
        for first in range(len(text.keys) * size, len(tokens) - size + 1, size):
            text.keys.append(hash((text.keys[-1] if first else 0, *tokens[first : first + size])))
        matching = self._matching_blocks(text, table)
        stored = matching * size
        written = text.stored + common_prefix(text.drafts, [*tokens[text.stored :], *sampled])
        for at, (block, before) in enumerate(zip(table[matching:], text.blocks[matching:], strict=False), matching):
            if written <= stored or block != before or self._marks.get(block) != ~sequence:
                break
            stored = min(written, (at + 1) * size)
        for at in range(matching, min(stored // size, len(text.keys))):
            self._marks[table[at]] = text.keys[at]
        return min(stored, len(tokens) + len(sampled) - 1)

    def wrote(self, sequence: int, table: list[int], start: int, end: int, drafts: Sequence[int]) -> None:
        """Records that KV of tokens `start` … `end` - 1 of a sequence, and of its `drafts` after them, was written."""
        text = self._texts.use(sequence)
        assert text is not None and start <= end, "KV is written before `stored_tokens` was asked"
        last = blocks_for(end + len(drafts), self._block_tokens)
        assert last <= len(table), "written beyond the table"
        for block in table[start // self._block_tokens : last]:
            before = self._marks.get(block)
            self._changes += before not in (None, ~sequence)
            self._marks[block] = ~sequence
        text.stored, text.drafts, text.blocks = end, drafts, table[:last]

    def trim(self, sequences: int) -> None:
        """Forgets the sequences used longest ago, if many more are remembered than the `sequences` of a step."""
        self._texts.forget(sequences)

    def _matching_blocks(self, text: _Text, table: list[int]) -> int:
        count = text.matching
        if text.checked_at != self._changes or table[:count] != text.blocks[:count]:
            count = 0
        for key, block in zip(text.keys[count:], table[count:], strict=False):
            if self._marks.get(block) != key:
                break
            count += 1
        text.matching, text.checked_at = count, self._changes
        return count
