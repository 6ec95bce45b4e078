"""The KV of all blocks in plain lists: what is in them once moves are carried out in order and steps have stored."""

from itertools import product

from contracts.kv.spec import KVGroup
from engine.blocks.prefix_cache import Node
from engine.plan import NULL_BLOCK, BlockMove
from tests.engine.blocks.held_sequence import SOUND, HeldSequence


class StoredKV:
    """The pool and the host tier. A position holds the number of a text, and what is wrong with its KV."""

    def __init__(self, groups: tuple[KVGroup, ...], blocks: int, slots: int, main: int) -> None:
        """`blocks`: of each group, without the null block. `slots`: of the host tier, for the group `main`."""
        self.groups = groups
        self.sizes = sizes = [group.block_tokens for group in groups]
        self._main = main
        self.pool: list[list[list[int]]] = [[[0] * size for _ in range(blocks + 1)] for size in sizes]
        self.host: list[list[int]] = [[0] * sizes[main] for _ in range(slots)]
        # what is wrong with each position's KV, and with all that was computed from it
        self.ills: list[list[list[frozenset[int]]]] = [[[SOUND] * size for _ in range(blocks + 1)] for size in sizes]
        self.host_ills: list[list[frozenset[int]]] = [[SOUND] * sizes[main] for _ in range(slots)]
        self.copied = SOUND  # of that, what is in blocks that others may have copied

    def first(self, group: int, position: int) -> int:
        return self.groups[group].first_needed(position)

    def carry_out(self, moves: list[BlockMove]) -> None:
        for move in moves:
            pool = self.pool[move.group]
            assert move.group == self._main or move.kind == "copy"
            ills = self.ills[move.group]
            places = {"in": (self.host, self.host_ills), "copy": (pool, ills), "out": (pool, ills)}[move.kind]
            targets = (self.host, self.host_ills) if move.kind == "out" else (pool, ills)
            targets[0][move.target] = list(places[0][move.source])
            targets[1][move.target] = list(places[1][move.source])
            if move.kind == "copy":
                self.copied = self.copied.union(*ills[move.target])

    def store(self, held: HeldSequence) -> None:
        ills = SOUND if held.landing else held.breaks | self.ills_before(held, held.start)
        for (group, size), position in product(enumerate(self.sizes), range(held.start, held.planned)):
            if not (held.landing and position // size < max(held.known[group], self.first(group, held.planned))):
                self.pool[group][held.tables[group][position // size]][position % size] = held.texts[position]
                self.ills[group][held.tables[group][position // size]][position % size] = ills

    def ills_before(self, held: HeldSequence, position: int) -> frozenset[int]:
        """What is wrong with the KV before a position, as far as the last step has seen it."""
        found = set(SOUND)
        for group, size in enumerate(self.sizes):
            for at in range(self.first(group, held.start) * size, position):
                found |= self.ills[group][held.tables[group][at // size]][at % size]
        return frozenset(found)

    def ills_of(self, group: int, node: Node) -> frozenset[int]:
        if node.block is not None:
            return SOUND.union(*self.ills[group][node.block])
        assert node.slot is not None
        return SOUND.union(*self.host_ills[node.slot])

    def expect(self, held: HeldSequence) -> None:
        for group, (pool, size, table) in enumerate(zip(self.pool, self.sizes, held.tables, strict=True)):
            for at in range(self.first(group, held.seen) * size, held.planned, size):
                wanted = held.texts[at : min(at + size, held.planned)]
                assert table[at // size] != NULL_BLOCK, f"position {at}… has no block"
                assert pool[table[at // size]][: len(wanted)] == wanted, f"position {at}… is of another text"

    def of_node(self, group: int, node: Node) -> list[int]:
        if node.block is not None:
            return self.pool[group][node.block]
        assert node.slot is not None
        return self.host[node.slot]
