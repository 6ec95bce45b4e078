"""What a block manager stands for, in plain lists: texts, and bytes that are moved as it says.

The KV of a position is a number that stands for all tokens up to there and for whose they are: equal numbers are equal
texts. Steps are those of the scheduler: what is planned (allocations, growth, registration) adds up until `run`, which
carries out the moves in order and then stores what the step computes. Every sequence then has to read its own text, as
far as it sees it, from its own blocks, and the cache has to know nothing that is not there.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from contracts.kv.block_hash import SHORT_KEY_BYTES
from engine.blocks.key_changes import KeyChanges
from engine.blocks.manager import BlockManager
from engine.plan import NULL_BLOCK, BlockMove
from tests.engine.blocks.cache_checks import check_cache, check_found
from tests.engine.blocks.held_sequence import SOUND, HeldSequence
from tests.engine.blocks.stored_kv import StoredKV
from tests.engine.blocks.test_manager import spec
from tests.engine.blocks.text_numbers import TENANTS, TextNumbers

BEGINNINGS = ((0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1), (0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0))
"""Beginnings that many texts share; the two share their first four tokens."""

BEGINNING_TOKENS = (0, 3, 4, 5, 7, 8, 11, 12, 12, 12)
"""Lengths of the beginning that a text has in common with others."""

ORDER = """
compute, preempt, admit, compute, run, free, admit, compute, fork, compute, readmit, adopt, admit, compute, run,
preempt, admit, compute, hand off, admit, compute, sent, free, readmit, run, compute, fork, compute, adopt, admit, free,
admit, compute, preempt, admit, abort, compute, sent, compute, admit, compute, fail, admit, compute, break, compute
"""
OPERATIONS = [name.strip() for name in ORDER.split(",")]
"""Each as often as it is to happen."""

MAX_TOKENS = 24
"""Of a sequence."""
MAX_SEQUENCES = 4
"""At once."""


class BlocksModel:
    """A block manager, and what must be true of it. Numbers that choose among things may be any."""

    def __init__(self, shapes: tuple[tuple[int, int], ...], blocks: int, slots: int, least: int, ahead: int) -> None:
        """`least`: so many blocks are worth bringing back from the host tier. `ahead`: for windows."""
        self.groups, self.blocks, self.least = spec(*shapes).groups, blocks, least
        self.sizes = [group.block_tokens for group in self.groups]
        slots = slots if any(not group.window for group in self.groups) else 0
        counts = [blocks + 1] * len(shapes)
        self.manager = BlockManager(spec(*shapes), counts, slots, lambda count: count >= least, ahead, KeyChanges())
        self.told: set[bytes] = set()  # short keys that gateways know of, if they heard all changes
        self.step = 1  # the one being planned
        self.held: list[HeldSequence] = []
        self.waiting: list[HeldSequence] = []  # preempted
        self.io: list[HeldSequence] = []  # whose tables a transport still reads
        self.planned: list[HeldSequence] = []  # in the step being planned
        self.moves: list[BlockMove] = []  # before it
        self.kv = StoredKV(self.groups, blocks, slots, self.manager.main)
        self.texts = TextNumbers()
        self.counts: Counter[str] = Counter()
        self._broken = -100  # KV that is of no text

    def act(self, choice: int, which: int, count: int, bits: int) -> None:
        """Carries out the first of `OPERATIONS`, from the chosen one on, that there is anybody for.

        The other numbers say whom it is about, how much it is, and of what tokens.
        """
        for at in range(len(OPERATIONS)):
            if self._act(OPERATIONS[(choice + at) % len(OPERATIONS)], which, count, bits):
                break
        self.counts["steps"] += 1
        self.check()
        self.check_told()

    def _act(self, operation: str, which: int, count: int, bits: int) -> bool:
        match operation:
            case "admit":
                own = [bits >> at & bits >> 3 & bits >> 4 & 1 for at in range(count)]
                return self.admit(bits >> 6, which, own, int(bits % 8 == 7), landing=bits % 5 == 0)
            case "readmit":
                return self.readmit()
            case "compute":
                return self.compute(which, 1 + count, bits)
            case "fork":
                return self.fork(which)
            case "free":
                return self.free(which)
            case "preempt":
                return self.preempt(which)
            case "hand off":
                return self.hand_off(which)
            case "sent":
                return self.sent(which)
            case "adopt":
                return self.adopt(which)
            case "abort":
                return self.abort(which)
            case "break":
                return self.spoil(which)
            case "fail":
                return self.fail(which, broken=bits % 2 == 0)
        self.run()
        return True

    # operations; False: there was nobody to do it with ---------------------------------------------------------------

    def admit(self, common: int, length: int, own: Iterable[int], tenant: int, landing: bool) -> bool:
        """A new sequence that begins as others do, for some tenant."""
        if len(self.held) == MAX_SEQUENCES:
            return False
        begins = BEGINNINGS[common % len(BEGINNINGS)]
        tokens = [*begins[: BEGINNING_TOKENS[length % len(BEGINNING_TOKENS)]], *own] or [0]
        root = self.texts.root(tenant % len(TENANTS))
        held = HeldSequence(tokens, self.texts.of(root, tokens), self.manager.chains(self.texts.salt(root)))
        held.landing = landing
        self._admit(held)
        return True

    def readmit(self) -> bool:
        """The first of the preempted ones goes on."""
        if self.waiting and len(self.held) < MAX_SEQUENCES:
            self._admit(self.waiting.pop(0))
            return True
        return False

    def compute(self, which: int, count: int, own: int) -> bool:
        """The next chunk of a sequence, or another token, which is drawn from `own`."""
        held = self._one(which, lambda each: not each.landing and each not in self.planned)
        if held is None:
            return False
        length = len(held.tokens)
        if held.planned == length:
            if length == MAX_TOKENS:
                return False
            held.tokens.append(int(own % 8 == 0))  # mostly zeros, so that many agree
            held.texts += self.texts.of(held.texts[-1], held.tokens[-1:])
        if not self._grow(held):
            del held.tokens[length:], held.texts[length:]
            self.counts["no room to grow"] += 1
            return True
        held.start, held.step, held.breaks = held.planned, self.step, SOUND
        held.planned = min(len(held.tokens), held.planned + count, self.manager.capacity(held.tables))
        self.planned.append(held)
        self.counts["compute"] += 1
        if held.planned >= held.register_at:
            self._register(held, held.planned, self.step, replace=False)
        return True

    def fork(self, which: int) -> bool:
        """Two sequences go on from what was one."""
        held = self._one(which, lambda each: each.planned == len(each.tokens) and not each.landing)
        if held is None or len(self.held) == MAX_SEQUENCES:
            return False
        self._run_if(held)
        other = HeldSequence(list(held.tokens), list(held.texts), tuple(keys.copy() for keys in held.chains))
        other.tables, other.known = self.manager.fork(held.tables), list(held.known)
        other.planned, other.start, other.register_at = held.planned, held.start, held.register_at
        other.since, other.step = held.since, held.step
        other.seen = held.seen
        held.forked = other.forked = True
        self.held.append(other)
        self.counts["fork"] += 1
        return True

    def free(self, which: int) -> bool:
        """A sequence ends."""
        held = self._one(which, lambda each: not each.landing)
        if held is not None:
            self._run_if(held)
            self._end(held, "free")
        return held is not None

    def preempt(self, which: int) -> bool:
        """A sequence gives its blocks back and waits."""
        held = self._one(which, lambda each: not each.landing)
        if held is not None:
            self._run_if(held)
            self._end(held, "preempt")
            held.tables, held.preempted = (), True
            self.waiting.append(held)
        return held is not None

    def hand_off(self, which: int) -> bool:
        """A sequence ends while its blocks are still read."""
        held = self._one(which, lambda each: not each.landing)
        if held is not None:
            self._run_if(held)
            read = HeldSequence(held.tokens[: held.planned], held.texts[: held.planned], ())
            read.planned = read.seen = held.planned
            pairs = zip(self.groups, held.tables, strict=True)
            read.tables = tuple([_from(group.first_needed(read.planned), table) for group, table in pairs])
            for at, table in enumerate(read.tables):
                self.manager.hold_io(at, filter(None, table))
            self.io.append(read)
            self._end(held, "hand off")
        return held is not None

    def sent(self, which: int) -> bool:
        """A transport has read what it had to."""
        if not self.io:
            return False
        for group, table in enumerate(self.io.pop(which % len(self.io)).tables):
            self.manager.release_io(group, [block for block in table if block])
        self.counts["sent"] += 1
        return True

    def adopt(self, which: int) -> bool:
        """The KV of a landing sequence is there, but for the blocks that it found here."""
        held = self._one(which, lambda each: each.landing)
        if held is None:
            return False
        self.run()
        held.start, held.planned = 0, len(held.tokens)
        self.kv.store(held)
        held.start, held.seen, held.landing = held.planned, held.planned, False
        before = [list(table) for table in held.tables]
        self._register(held, held.planned, self.step - 1, replace=True)
        held.since = self.manager.since(held.tables, held.since)
        self.counts["adopt"] += 1
        self.counts["exchange"] += [list(table) for table in held.tables] != before
        return True

    def abort(self, which: int) -> bool:
        """A landing sequence ends, with nothing to be known of it."""
        held = self._one(which, lambda each: each.landing)
        if held is not None:
            self._drop(held)
            self.counts["abort"] += 1
        return held is not None

    def spoil(self, which: int) -> bool:
        """What a sequence's planned step stores will not be what it should, nor what is computed from it."""
        held = self._one(which, lambda each: each in self.planned)
        if held is not None:
            self._broken -= 1
            held.breaks = frozenset({self._broken})
            self.counts["break"] += 1
        return held is not None

    def fail(self, which: int, broken: bool) -> bool:
        """A sequence's last step has failed: what it stored is not to be found, and may be of no text.

        Where it has read what is ill already, nothing of it is proven. Of what was wrong nothing is to be found.
        """
        held = self._one(which, lambda each: not each.landing and each.planned > each.start)
        if held is None:
            return False
        self.run()
        proven = not self.kv.ills_before(held, held.start)
        first = held.start if proven else 0
        since = held.step if proven else self.manager.since(held.tables, held.since)
        wrong = self.kv.ills_before(held, held.planned)
        tables = [each.tables for each in (*self.held, *self.io) if each is not held]
        for group, size in enumerate(self.sizes):
            shared = {block for each in tables for block in each[group]}
            if broken and not shared & set(held.tables[group][first // size :]):
                for position in range(first, held.planned):
                    self._broken -= 1
                    self.kv.pool[group][held.tables[group][position // size]][position % size] = self._broken
        before = sum(node.step < since for pool in self.manager.groups for node in pool.cache)
        self.manager.invalidate(held.tables, first, since)
        self.counts["prompt failed" if not proven else "ill"] += bool(wrong)
        self.counts["kept"] += before > 0 and any(node for pool in self.manager.groups for node in pool.cache)
        for group, pool in enumerate(self.manager.groups):
            passed = SOUND if self.manager.has_windows else self.kv.copied
            for node in pool.cache:
                assert not self.kv.ills_of(group, node) & wrong - passed, "what was computed from broken KV is found"
        held.planned = first
        self._end(held, "fail")
        return True

    def run(self) -> None:
        """The step that was planned: moves in order, then all of it is stored, then all of it is read."""
        self.moves += self.manager.take_moves()
        self.counts["run"] += 1
        self.kv.carry_out(self.moves)
        self.counts.update(f"move: {move.kind}" for move in self.moves)
        self.moves.clear()
        for held in self.planned:
            self.kv.store(held)
        self.planned.clear()
        self.step += 1
        for held in (*self.held, *self.io):
            self.kv.expect(held)
        check_cache(self.manager, self.kv, self.texts)

    # what must be true ----------------------------------------------------------------------------------------------

    def check_told(self) -> None:
        """Whoever hears of every change knows which blocks the cache of the main group has."""
        changed = self.manager.take_key_changes()
        if changed is not None:
            both = (changed.kept, changed.lost)
            kept, lost = (
                {keys[at : at + SHORT_KEY_BYTES] for at in range(0, len(keys), SHORT_KEY_BYTES)} for keys in both
            )
            assert not kept & lost
            self.told = (self.told - lost) | kept
        assert self.told == {node.key[:SHORT_KEY_BYTES] for node in self.manager.groups[self.manager.main].cache}

    def check(self) -> None:
        """The manager's own invariants, and its counts."""
        self.manager.check_invariants(each.tables for each in self.held)
        for group, pool in enumerate(self.manager.groups):
            used = {block for each in (*self.held, *self.io) for block in each.tables[group]}
            assert self.groups[group].window or NULL_BLOCK not in used
            used.discard(NULL_BLOCK)
            assert pool.available == self.blocks - len(used)
        self.moves += self.manager.take_moves()

    def finish(self) -> None:
        """Everything ends, and nothing is held."""
        self.run()
        for held in list(self.held):
            self._drop(held)
        while self.sent(0):
            pass
        self.run()
        self.check()
        assert self.manager.used_count == 0
        for pool in self.manager.groups:
            self.counts["evicted"] += pool.evicted
            self.counts["copied"] += pool.copied
            self.counts["spilled"] += pool.spilled
            self.counts["returned"] += pool.returned

    # inside ---------------------------------------------------------------------------------------------------------

    def _admit(self, held: HeldSequence) -> None:
        limit = len(held.tokens) - (not held.landing)
        found = self.manager.find(held.tokens, held.chains, limit, self.step, whole=held.landing)
        assert 0 <= found.tokens <= limit
        if not self.planned and not self.moves:
            check_found(self.manager, self.kv, held, found, limit, returns_all=not self.least)
        fits = self.manager.fits(len(held.tokens), (), found)
        returning, partial = found.returning, found.partial
        tables = self.manager.allocate(len(held.tokens), found)
        assert (tables is not None) == fits
        if tables is None:
            self.counts["no room to begin"] += 1
            return
        held.tables, held.known = tables, list(found.held)
        held.planned = held.start = found.tokens
        held.seen = len(held.tokens) if held.landing else held.planned
        held.since = found.since(self.step - 1 if held.landing else self.step)
        held.register_at = self.manager.next_full(held.known)
        self.held.append(held)
        self.counts["readmit" if held.preempted else "land" if held.landing else "admit"] += 1
        self.counts["hit"] += found.tokens > 0
        self.counts["partial hit"] += partial
        self.counts["whole hit"] += found.whole_blocks > 0
        self.counts["hit in this step"] += any(
            node.step == self.step for hit in found.hits for node in hit.nodes if node.block is not None
        )
        self.counts["hit in the host tier"] += returning > 0
        for group, table in zip(self.groups, tables, strict=True):
            if not group.window or held.landing:
                assert len(table) == -(-len(held.tokens) // group.block_tokens)

    def _grow(self, held: HeldSequence) -> bool:
        if self.manager.has_windows:
            self.manager.advance(held.tables, held.planned, len(held.tokens) - 1)
            held.seen = held.planned
        before = [list(table) for table in held.tables]
        position = held.planned if held.forked else None
        least = held.planned + 1 if self.manager.has_windows else len(held.tokens)
        if not self.manager.grow(held.tables, least, position):
            assert [list(table) for table in held.tables] == before
            return False
        held.forked = False
        return True

    def _register(self, held: HeldSequence, upto: int, step: int, replace: bool) -> None:
        self.manager.register(held.tables, held.chains, held.tokens, held.known, upto, step, held.since, replace)
        held.register_at = self.manager.next_full(held.known, upto)
        stopped = any(known < upto // size for known, size in zip(held.known, self.sizes, strict=True))
        self.counts["duplicate"] += stopped and not replace

    def _run_if(self, held: HeldSequence) -> None:
        if held in self.planned:
            self.run()

    def _end(self, held: HeldSequence, count: str) -> None:
        self._register(held, held.planned, self.step - 1, replace=True)
        self._drop(held)
        self.counts[count] += 1

    def _drop(self, held: HeldSequence) -> None:
        self.manager.free(held.tables)
        self.held.remove(held)

    def _one(self, which: int, fit: Callable[[HeldSequence], bool]) -> HeldSequence | None:
        fitting = [each for each in self.held if fit(each)]
        return fitting[which % len(fitting)] if fitting else None


def _from(first: int, table: list[int]) -> list[int]:
    """A table from one place on; before it is the null block."""
    return [NULL_BLOCK] * first + table[first:]
