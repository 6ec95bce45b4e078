"""What a block manager stands for, in plain lists: texts, and bytes that are moved as it says.

The KV of a position is a number that stands for all tokens up to there and for whose they are: equal numbers are equal
texts. Steps are those of the scheduler: what is planned (allocations, growth, registration) adds up until `run`, which
carries out the moves in order and then stores what the step computes. Every sequence then has to read its own text, as
far as it sees it, from its own blocks, and the cache has to know nothing that is not there.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product

from contracts.kv.block_hash import SHORT_KEY_BYTES, BlockKeys, root_key
from contracts.kv.spec import KVGroup
from engine.blocks.finding import FoundPrefix
from engine.blocks.key_changes import KeyChanges
from engine.blocks.manager import BlockManager, Chains, Tables
from engine.blocks.prefix_cache import Node
from engine.plan import NULL_BLOCK, BlockMove
from tests.engine.blocks.test_manager import spec

COMMON = ((0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1), (0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0))
"""Beginnings that many texts share; the two share their first four tokens."""

LENGTHS = (0, 3, 4, 5, 7, 8, 11, 12, 12, 12)
"""Of the beginning that a text has in common with others."""

TENANTS = ("", "other")
ORDER = """
compute, preempt, admit, compute, run, free, admit, compute, fork, compute, readmit, adopt, admit, compute, run,
preempt, admit, compute, hand off, admit, compute, sent, free, readmit, run, compute, fork, compute, adopt, admit, free,
admit, compute, preempt, admit, abort, compute, sent, compute, admit, compute, fail, admit, compute, break, compute
"""
OPERATIONS = [name.strip() for name in ORDER.split(",")]
"""As often as they are to happen."""

SOUND: frozenset[int] = frozenset()
LONGEST = 24
MOST = 4
"""Sequences at once."""


class Held:
    """A sequence as the scheduler keeps it; `texts` has a number for each of its tokens."""

    def __init__(self, tokens: list[int], texts: list[int], chains: Chains) -> None:
        self.tokens, self.texts, self.chains = tokens, texts, chains
        self.tables: Tables = ()
        self.known: list[int] = []
        self.planned = 0  # tokens whose KV is there once the planned step has run
        self.start = 0  # where the planned step, or else the last one, begins to compute
        self.since = 0  # the oldest step of what it is computed from
        self.step = 0  # that computed last
        self.breaks: frozenset[int] = frozenset()  # what is wrong with the KV that its planned step stores
        self.seen = 0  # the first query that is still to come, or that of the planned step
        self.register_at = 0
        self.landing = self.forked = self.preempted = False


class BlocksModel:
    """A block manager, and what must be true of it. Numbers that choose among things may be any."""

    def __init__(self, shapes: tuple[tuple[int, int], ...], blocks: int, slots: int, least: int, ahead: int) -> None:
        """`least`: so many blocks are worth bringing back from the host tier. `ahead`: for windows."""
        self.groups, self.blocks, self.least = spec(*shapes).groups, blocks, least
        self.sizes = sizes = [group.block_tokens for group in self.groups]
        self.slots = slots = slots if any(not group.window for group in self.groups) else 0
        counts = [blocks + 1] * len(shapes)
        self.manager = BlockManager(spec(*shapes), counts, slots, lambda count: count >= least, ahead, KeyChanges())
        self.told: set[bytes] = set()  # short keys that gateways know of, if they heard all changes
        self.step = 1  # the one being planned
        self.held: list[Held] = []
        self.waiting: list[Held] = []  # preempted
        self.io: list[Held] = []  # whose tables a transport still reads
        self.planned: list[Held] = []  # in the step being planned
        self.moves: list[BlockMove] = []  # before it
        self.pool: list[list[list[int]]] = [[[0] * size for _ in range(blocks + 1)] for size in sizes]
        # what is wrong with each position's KV, and with all that was computed from it
        self.ills: list[list[list[frozenset[int]]]] = [[[SOUND] * size for _ in range(blocks + 1)] for size in sizes]
        self.host_ills: list[list[frozenset[int]]] = [[SOUND] * sizes[self.manager.main] for _ in range(slots)]
        self.copied = SOUND  # of that, what is in blocks that others may have copied
        self.host: list[list[int]] = [[0] * sizes[self.manager.main] for _ in range(slots)]
        self.counts: Counter[str] = Counter()
        self._texts: dict[tuple[int, int], int] = {}  # (text before, token) -> text
        self._before: dict[int, tuple[int, int]] = {}  # text -> (text before, token)
        self._roots = {root_key(salt): -1 - at for at, salt in enumerate(TENANTS)}
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
        if len(self.held) == MOST:
            return False
        tokens = [*COMMON[common % len(COMMON)][: LENGTHS[length % len(LENGTHS)]], *own] or [0]
        salt = TENANTS[tenant % len(TENANTS)]
        held = Held(tokens, self._numbers(-1 - tenant % len(TENANTS), tokens), self.manager.chains(salt))
        held.landing = landing
        self._admit(held)
        return True

    def readmit(self) -> bool:
        """The first of the preempted ones goes on."""
        if self.waiting and len(self.held) < MOST:
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
            if length == LONGEST:
                return False
            held.tokens.append(int(own % 8 == 0))  # mostly zeros, so that many agree
            held.texts += self._numbers(held.texts[-1], held.tokens[-1:])
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
        if held is None or len(self.held) == MOST:
            return False
        self._run_if(held)
        other = Held(list(held.tokens), list(held.texts), tuple(keys.copy() for keys in held.chains))
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
            read = Held(held.tokens[: held.planned], held.texts[: held.planned], ())
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
        self._store(held)
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
        proven = not self._ills(held, held.start)
        first = held.start if proven else 0
        since = held.step if proven else self.manager.since(held.tables, held.since)
        wrong = self._ills(held, held.planned)
        tables = [each.tables for each in (*self.held, *self.io) if each is not held]
        for group, size in enumerate(self.sizes):
            shared = {block for each in tables for block in each[group]}
            if broken and not shared & set(held.tables[group][first // size :]):
                for position in range(first, held.planned):
                    self._broken -= 1
                    self.pool[group][held.tables[group][position // size]][position % size] = self._broken
        before = sum(node.step < since for pool in self.manager.groups for node in pool.cache)
        self.manager.invalidate(held.tables, first, since)
        self.counts["prompt failed" if not proven else "ill"] += bool(wrong)
        self.counts["kept"] += before > 0 and any(node for pool in self.manager.groups for node in pool.cache)
        for group, pool in enumerate(self.manager.groups):
            passed = SOUND if self.manager.has_windows else self.copied
            for node in pool.cache:
                assert not self._ills_of(group, node) & wrong - passed, "what was computed from broken KV is found"
        held.planned = first
        self._end(held, "fail")
        return True

    def run(self) -> None:
        """The step that was planned: moves in order, then all of it is stored, then all of it is read."""
        self.moves += self.manager.take_moves()
        self.counts["run"] += 1
        self._carry_out(self.moves)
        self.moves.clear()
        for held in self.planned:
            self._store(held)
        self.planned.clear()
        self.step += 1
        for held in (*self.held, *self.io):
            self._expect(held)
        self._check_cache()

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

    def _check_cache(self) -> None:
        """Every text that the cache knows is where it says."""
        for group, pool in enumerate(self.manager.groups):
            for node in pool.cache:
                kv = self._kv(group, node)
                tokens, root = self._told(kv[-1])
                keys = BlockKeys(TENANTS[-1 - root], pool.block_tokens)
                keys.cover(tokens, len(tokens))
                assert keys.keys[-1:] == [node.key] and keys.packed[-1] == node.tokens, "the cache knows another text"
                texts = self._numbers(root, tokens)
                assert texts[-pool.block_tokens :] == kv, "the cache knows what is not there"

    def _told(self, text: int) -> tuple[list[int], int]:
        """The tokens of a text, and what stands for its tenant."""
        tokens = []
        while text > 0:
            text, token = self._before[text]
            tokens.append(token)
        assert text >= -len(TENANTS), "KV that is of no text"
        return tokens[::-1], text

    def _check_found(self, held: Held, found: FoundPrefix, limit: int) -> None:
        """Nothing more of the text is in the cache; asked while no step is being planned."""
        here = [
            {number for node in pool.cache for number in self._kv(at, node)}
            for at, pool in enumerate(self.manager.groups)
        ]
        groups = list(zip(self.groups, here, strict=True))
        if held.landing:
            for (group, known), whole in zip(groups, found.held, strict=True):
                ends = range(group.first_needed(limit), limit // group.block_tokens)
                run = next((at for at in ends if held.texts[(at + 1) * group.block_tokens - 1] not in known), ends.stop)
                assert whole <= run and (self.least or whole == run), "the cache knows more of this text, or less"
            return
        most = max(at for at in range(limit + 1) if all(_sees(group, held.texts, at, known) for group, known in groups))
        assert found.tokens <= most and (self.least or found.tokens == most), "the cache knows more of this, or less"

    # inside ---------------------------------------------------------------------------------------------------------

    def _admit(self, held: Held) -> None:
        limit = len(held.tokens) - (not held.landing)
        found = self.manager.find(held.tokens, held.chains, limit, self.step, whole=held.landing)
        assert 0 <= found.tokens <= limit
        if not self.planned and not self.moves:
            self._check_found(held, found, limit)
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

    def _grow(self, held: Held) -> bool:
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

    def _register(self, held: Held, upto: int, step: int, replace: bool) -> None:
        self.manager.register(held.tables, held.chains, held.tokens, held.known, upto, step, held.since, replace)
        held.register_at = self.manager.next_full(held.known, upto)
        stopped = any(known < upto // size for known, size in zip(held.known, self.sizes, strict=True))
        self.counts["duplicate"] += stopped and not replace

    def _run_if(self, held: Held) -> None:
        if held in self.planned:
            self.run()

    def _end(self, held: Held, count: str) -> None:
        self._register(held, held.planned, self.step - 1, replace=True)
        self._drop(held)
        self.counts[count] += 1

    def _drop(self, held: Held) -> None:
        self.manager.free(held.tables)
        self.held.remove(held)

    def _one(self, which: int, fit: Callable[[Held], bool]) -> Held | None:
        fitting = [each for each in self.held if fit(each)]
        return fitting[which % len(fitting)] if fitting else None

    def _numbers(self, before: int, tokens: Iterable[int]) -> list[int]:
        numbers = []
        for token in tokens:
            number = self._texts.setdefault((before, token), len(self._texts) + 1)
            self._before[number] = before, token
            numbers.append(before := number)
        return numbers

    def _carry_out(self, moves: list[BlockMove]) -> None:
        for move in moves:
            pool = self.pool[move.group]
            assert move.group == self.manager.main or move.kind == "copy"
            ills = self.ills[move.group]
            places = {"in": (self.host, self.host_ills), "copy": (pool, ills), "out": (pool, ills)}[move.kind]
            targets = (self.host, self.host_ills) if move.kind == "out" else (pool, ills)
            targets[0][move.target] = list(places[0][move.source])
            targets[1][move.target] = list(places[1][move.source])
            if move.kind == "copy":
                self.copied = self.copied.union(*ills[move.target])
            self.counts[f"move: {move.kind}"] += 1

    def _store(self, held: Held) -> None:
        ills = SOUND if held.landing else held.breaks | self._ills(held, held.start)
        for (group, size), position in product(enumerate(self.sizes), range(held.start, held.planned)):
            if not (held.landing and position // size < max(held.known[group], self._first(group, held.planned))):
                self.pool[group][held.tables[group][position // size]][position % size] = held.texts[position]
                self.ills[group][held.tables[group][position // size]][position % size] = ills

    def _ills(self, held: Held, position: int) -> frozenset[int]:
        """What is wrong with the KV before a position, as far as the last step has seen it."""
        found = set(SOUND)
        for group, size in enumerate(self.sizes):
            for at in range(self._first(group, held.start) * size, position):
                found |= self.ills[group][held.tables[group][at // size]][at % size]
        return frozenset(found)

    def _ills_of(self, group: int, node: Node) -> frozenset[int]:
        if node.block is not None:
            return SOUND.union(*self.ills[group][node.block])
        assert node.slot is not None
        return SOUND.union(*self.host_ills[node.slot])

    def _first(self, group: int, position: int) -> int:
        return self.groups[group].first_needed(position)

    def _expect(self, held: Held) -> None:
        for group, (pool, size, table) in enumerate(zip(self.pool, self.sizes, held.tables, strict=True)):
            for at in range(self._first(group, held.seen) * size, held.planned, size):
                wanted = held.texts[at : min(at + size, held.planned)]
                assert table[at // size] != NULL_BLOCK, f"position {at}… has no block"
                assert pool[table[at // size]][: len(wanted)] == wanted, f"position {at}… is of another text"

    def _kv(self, group: int, node: Node) -> list[int]:
        if node.block is not None:
            return self.pool[group][node.block]
        assert node.slot is not None
        return self.host[node.slot]


def _from(first: int, table: list[int]) -> list[int]:
    """A table from one place on; before it is the null block."""
    return [NULL_BLOCK] * first + table[first:]


def _sees(group: KVGroup, texts: list[int], tokens: int, known: set[int]) -> bool:
    """Whether a query behind so many tokens of a text finds all that it sees, in whole blocks but for the last."""
    size = group.block_tokens
    whole = [texts[(at + 1) * size - 1] for at in range(group.first_needed(tokens), tokens // size)]
    return known.issuperset(whole) and (tokens % size == 0 or texts[tokens - 1] in known)
