"""Allocates KV blocks over all KV groups, by number; their bytes are in the KV pool.

Blocks are taken in every group, or in none. The copies and moves to and from the host tier that this requires are
collected as `BlockMove`s, to be carried out in order before anything else touches the pool.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal

from contracts.errors import CapacityError
from contracts.kv.block_hash import BlockKeys
from contracts.kv.spec import KVSpec
from engine.blocks.finding import FoundPrefix, find, find_whole
from engine.blocks.hit import NO_HIT, Hit
from engine.blocks.key_changes import Changed, KeyChanges
from engine.blocks.pool import BlockPool
from engine.blocks.window_pool import WindowPool
from engine.plan import BlockMove

Tables = tuple[list[int], ...]
"""The blocks of one sequence for each KV group, in order of position; the null block outside a window."""

Chains = tuple[BlockKeys, ...]
"""The keys of one sequence's blocks, for each KV group."""


def _always(blocks: int) -> bool:
    return True


class BlockManager:
    """Allocates and frees the blocks of all KV groups."""

    def __init__(
        self,
        spec: KVSpec,
        counts: Sequence[int],
        host_slots: int = 0,
        worth_returning: Callable[[int], bool] = _always,
        ahead: int = 1,
        changes: KeyChanges | None = None,
    ) -> None:
        """All blocks are free at first: `counts` in each group, including the null block.

        `host_slots`: blocks that fit into the host tier, all of the main group. `worth_returning`: see
        `WorthReturning`. `ahead`: maximum tokens of a sequence that steps in flight compute, for which a group with a
        window has room. `changes` records the keys that enter and leave the main group's cache. Raises `CapacityError`
        for a pool without a usable block.
        """
        if min(counts) < 2:
            raise CapacityError(f"a KV pool of {min(counts)} blocks: 2 are the least, because block 0 pads")
        self._moves: list[BlockMove] = []
        self._changes = changes
        full = [at for at, group in enumerate(spec.groups) if not group.window]
        self.main = full[0] if full else 0
        """The group that counts are given for: the first without a window, if there is one."""
        assert full or not host_slots, "what a window gives up does not go to the host tier"
        self.groups = tuple(
            WindowPool(group, count, ahead, partial(self._emit, at), changes if at == self.main else None)
            if group.window
            else BlockPool(
                count,
                group.block_tokens,
                host_slots * (at == self.main),
                partial(self._emit, at),
                worth_returning,
                changes if at == self.main else None,
            )
            for at, (group, count) in enumerate(zip(spec.groups, counts, strict=True))
        )
        self._windows = tuple((at, pool) for at, pool in enumerate(self.groups) if isinstance(pool, WindowPool))
        self._block_sizes = [group.block_tokens for group in self.groups]
        self.total = sum(group.total for group in self.groups)

    # counts ---------------------------------------------------------------------------------------------------------

    @property
    def available(self) -> int:
        """Blocks without references, over all groups: free blocks, and blocks that the cache can evict."""
        return sum([group.available for group in self.groups])

    @property
    def cached_count(self) -> int:
        return sum([group.idle for group in self.groups])

    @property
    def used_count(self) -> int:
        return self.total - self.available

    @property
    def pinned_count(self) -> int:
        return sum(group.pinned for group in self.groups)

    @property
    def quarantined_count(self) -> int:
        """Blocks with only I/O references, over all groups: their sequences have ended."""
        return sum(group.quarantined for group in self.groups)

    @property
    def used_slots(self) -> int:
        """Number of tokens that the used blocks of the main group could hold."""
        return self.groups[self.main].used * self.groups[self.main].block_tokens

    @property
    def has_windows(self) -> bool:
        return bool(self._windows)

    def needed(self, tokens: int) -> list[int]:
        """Returns by group the maximum blocks that a sequence of `tokens` tokens holds at once."""
        return [group.needed(tokens) for group in self.groups]

    def ever_fits(self, tokens: int) -> bool:
        return all(group.ever_fits(tokens) for group in self.groups)

    def capacity(self, tables: Tables) -> int:
        return min([len(table) * group.block_tokens for group, table in zip(self.groups, tables, strict=True)])

    # the prefix cache -----------------------------------------------------------------------------------------------

    def chains(self, salt: str, adapter: str = "") -> Chains:
        return tuple(BlockKeys(salt, group.block_tokens, adapter) for group in self.groups)

    def find(self, tokens: Sequence[int], chains: Chains, limit: int, step: int, *, whole: bool = False) -> FoundPrefix:
        """Finds the cached prefix of the first `limit` tokens; with `whole`, whole blocks in each group by itself.

        `step` is being planned. The result is valid until the next call.
        """
        if whole:
            return find_whole(self.groups, tokens, chains, limit, step)
        return find(self.groups, tokens, chains, limit, step)

    def fits(self, tokens: int, spare: Sequence[int] = (), found: FoundPrefix | None = None) -> bool:
        """Returns whether tables for `tokens` tokens that begin with `found` fit, leaving `spare` blocks by group."""
        spares = spare or (0,) * len(self.groups)
        groups = zip(self._with_hits(found), spares, strict=True)
        return all([group.fits(tokens, left, hit) for (group, hit), left in groups])

    # taking and giving back -----------------------------------------------------------------------------------------

    def allocate(self, tokens: int, found: FoundPrefix | None = None, spare: Sequence[int] = ()) -> Tables | None:
        """Takes tables for `tokens` tokens that begin with `found`; None if they do not fit, leaving `spare` blocks."""
        if not self.fits(tokens, spare, found):
            return None
        return tuple([group.allocate(tokens, hit) for group, hit in self._with_hits(found)])

    def grow(self, tables: Tables, tokens: int, position: int | None = None) -> bool:
        """Extends `tables` in place until they hold `tokens` tokens; False, and unchanged, if blocks are short.

        With `position`, the block of that position becomes the table's own: it is copied if other tables share it.
        """
        missing = [group.missing(table, tokens) for group, table in zip(self.groups, tables, strict=True)]
        shared = [
            position is not None and group.shared(table, position)
            for group, table in zip(self.groups, tables, strict=True)
        ]
        needs = list(zip(self.groups, missing, shared, strict=True))
        if not all(group.has_room(count, copy) for group, count, copy in needs):
            return False
        for table, (group, count, copy) in zip(tables, needs, strict=True):
            if copy:
                assert position is not None
                group.unshare(table, position)
            group.extend(table, count)
        return True

    def missing(self, wanted: Sequence[tuple[Tables, int]]) -> list[int]:
        """Returns by group the blocks that these tables lack to hold their numbers of tokens."""
        return [
            sum([group.missing(tables[at], tokens) for tables, tokens in wanted])
            for at, group in enumerate(self.groups)
        ]

    def has_room(self, counts: Sequence[int]) -> bool:
        """Returns whether these numbers of further blocks, one number for each group, may be taken."""
        return all(group.has_room(count, 0) for group, count in zip(self.groups, counts, strict=True))

    def advance(self, tables: Tables, position: int, tokens: int) -> int:
        """Moves the windows of `tables` to a query at `position`, and takes blocks for more of `tokens`.

        No step in flight may read KV before the windows. Returns the position at which to call again.
        """
        return min(pool.advance(tables[at], position, tokens) for at, pool in self._windows)

    def fork(self, tables: Tables) -> Tables:
        return tuple(group.share(table) for group, table in zip(self.groups, tables, strict=True))

    def free(self, tables: Tables) -> None:
        """Ends the sequence references of `tables`. The lists stay unchanged, since a plan may still refer to them."""
        for group, table in zip(self.groups, tables, strict=True):
            group.drop(table)

    def hold_io(self, group: int, blocks: Iterable[int]) -> None:
        """Adds I/O references to blocks, which then outlive the sequence that holds them."""
        self.groups[group].hold_io(blocks)

    def release_io(self, group: int, blocks: Sequence[int]) -> None:
        self.groups[group].release_io(blocks)

    # registering in the cache ---------------------------------------------------------------------------------------

    def register(
        self,
        tables: Tables,
        chains: Chains,
        tokens: Sequence[int],
        known: list[int],
        upto: int,
        step: int,
        since: int,
        replace: bool,
    ) -> None:
        """Registers in the cache that from `step` on `tables` hold the KV of the first `upto` of `tokens`.

        That KV is computed from KV of steps from `since` on. `known` is updated in place: by group, the leading blocks
        of the table that are registered. With `replace`, a table's own block may be exchanged for a cached block of the
        same text: no step in flight may refer to it.
        """
        for number, (group, table, keys) in enumerate(zip(self.groups, tables, chains, strict=True)):
            full = upto // group.block_tokens
            if known[number] < full:
                keys.cover(tokens, upto)
                known[number] = group.register(table, keys, known[number], full, step, since, replace)

    def known(self, found: FoundPrefix, tokens: int, sent: int = 0) -> list[int]:
        """Returns by group the leading blocks that are in `found` and need not be registered.

        `sent`: the sender's block size in tokens, if the rest of `tokens` lands; 0: the same size, or no landing.
        """
        if not sent:
            return list(found.held)
        return [group.known(hit, tokens, sent) for group, hit in zip(self.groups, found.hits, strict=True)]

    def next_full(self, known: Sequence[int], upto: int = 0) -> int:
        """Returns the token count above `upto` at which some group's next block after its `known` blocks is full."""
        return min(
            [max(count, upto // size) * size + size for count, size in zip(known, self._block_sizes, strict=True)]
        )

    def whole_blocks(self, tokens: int) -> int:
        return min(tokens // group.block_tokens for group in self.groups)

    def since(self, tables: Tables, step: int) -> int:
        """Returns the oldest step from which registered KV in `tables` was computed; at most `step`."""
        groups = zip(self.groups, tables, strict=True)
        return min([step, *(oldest for group, table in groups for oldest in group.since(table))])

    def invalidate(self, tables: Tables, position: int, since: int) -> None:
        """Removes wrong KV from `position` on, and all KV computed from it, from the cache.

        No step before `since` has stored or read any of it. With windows, blocks between may be gone, so positions do
        not show which KV a block was computed from. KV of step `since` or later is removed instead.
        """
        for group, table in zip(self.groups, tables, strict=True):
            group.invalidate(table, position // group.block_tokens)
            if self.has_windows:
                group.forget_since(since)

    def take_moves(self) -> list[BlockMove]:
        moves = list(self._moves)
        self._moves.clear()
        return moves

    def take_key_changes(self) -> Changed | None:
        return self._changes.take() if self._changes is not None else None

    def check_invariants(self, tables: Iterable[Tables]) -> None:
        """Raises AssertionError unless free + cached + used = all, and all counts match `tables` (all)."""
        held = list(tables)
        for number, group in enumerate(self.groups):
            group.check_invariants([each[number] for each in held])

    def _emit(self, group: int, kind: Literal["copy", "out", "in"], source: int, target: int) -> None:
        self._moves.append(BlockMove(kind, group, source, target))

    def _with_hits(self, found: FoundPrefix | None) -> list[tuple[BlockPool, Hit]]:
        hits = found.hits if found is not None else (NO_HIT,) * len(self.groups)
        return list(zip(self.groups, hits, strict=True))
