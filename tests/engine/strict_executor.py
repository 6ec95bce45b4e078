"""An executor small enough to be read in a minute, and strict: KV is a fingerprint of everything up to its token.

It runs steps and moves as late as the seam allows, a step at its collect, so that a block which was given away while a
launched step still writes to it is seen. Before a token is computed, the KV of every earlier position must be, in the
sequence's own block table, exactly what that sequence's own tokens give.
"""

from collections import deque
from collections.abc import Sequence as Tokens
from hashlib import blake2b
from typing import TypeVar

from core.messages import Sampling
from engine.blocks import NULL_BLOCK
from engine.plan import PENDING, BlockMove, Plan, StepResult

Launched = tuple[Plan, list[tuple[list[int], ...]]]
K = TypeVar("K")

VOCABULARY = 11
STOP = 7


def fingerprints(tokens: Tokens[int], owner: int = 0) -> list[bytes]:
    """The KV of each of `tokens`: it depends on all tokens up to it, and here also on whose they are."""
    found = [b"%d" % owner]
    for token in tokens:
        found.append(blake2b(b"%b %d" % (found[-1], token), digest_size=8).digest())
    return found[1:]


def next_token(tokens: Tokens[int], sampling: Sampling, sample: int, output_index: int) -> int:
    """Deterministic, and keyed by all that the real sampler is keyed by."""
    key = fingerprints(tokens)[-1] + b"%d %d %d" % (sampling.seed, sample, output_index)
    return blake2b(key, digest_size=8).digest()[0] % VOCABULARY


def reference(tokens: Tokens[int], prompt: int, sampling: Sampling, sample: int, end: int, stop: bool) -> list[int]:
    """What a sequence becomes that runs alone, token by token, until it has `end` tokens or has stopped."""
    done = list(tokens)
    while len(done) < end:
        done.append(next_token(done, sampling, sample, len(done) - prompt))
        if stop and done[-1] == STOP:
            break
    return done


def _put(where: dict[K, bytes], place: K, value: bytes | None) -> None:
    if value is None:
        where.pop(place, None)
    else:
        where[place] = value


class StrictExecutor:
    """Computes plans against KV that is kept per (group, block, slot); the host tier's per its slot and the block's."""

    def __init__(self, block_tokens: tuple[int, ...]) -> None:
        self._block_tokens = block_tokens
        self._kv: dict[tuple[int, int, int], bytes] = {}
        self._host: dict[tuple[int, int], bytes] = {}
        self._queue: deque[Launched | list[BlockMove]] = deque()
        self._results: deque[StepResult] = deque()
        self._contexts: dict[int, list[int]] = {}  # tokens of each sequence that were computed
        self._sampled: dict[int, int] = {}  # by the step before
        self.fail: set[int] = set()  # sequences whose next sampled row is not finite

    def launch(self, plan: Plan) -> None:
        """Consumes the plan: its block tables may change afterwards."""
        self._queue.append((plan, [tuple(list(table) for table in work.blocks) for work in plan.works]))

    def move(self, moves: Tokens[BlockMove]) -> None:
        """Queues the moves behind the launched steps."""
        self._queue.append(list(moves))

    def collect(self) -> StepResult:
        """The result of the oldest launched step, which is run now."""
        while not self._results:
            self._run()
        return self._results.popleft()

    def _settle(self) -> None:
        """Who lands or reads comes after the moves, and so after the steps before those."""
        while any(isinstance(entry, list) for entry in self._queue):
            self._run()

    def _run(self) -> None:
        entry = self._queue.popleft()
        if not isinstance(entry, list):
            self._results.append(self._compute(*entry))
            return
        for move in entry:
            self._move(move)

    def _move(self, move: BlockMove) -> None:
        assert move.kind == "out" or move.target != NULL_BLOCK
        for slot in range(self._block_tokens[move.group]):
            target = (move.group, move.target, slot)
            if move.kind == "in":
                _put(self._kv, target, self._host.get((move.source, slot)))
                continue
            value = self._kv.get((move.group, move.source, slot))
            if move.kind == "out":
                assert move.group == 0, "the host tier has blocks of the first group"
                _put(self._host, (move.target, slot), value)
            else:
                _put(self._kv, target, value)

    def _compute(self, plan: Plan, tables: list[tuple[list[int], ...]]) -> StepResult:
        answers: list[list[int]] = []
        failed: list[int] = []
        sampled: dict[int, int] = {}
        for number, (work, blocks) in enumerate(zip(plan.works, tables, strict=True)):
            context = self._contexts.setdefault(work.sequence, [])
            assert len(context) >= work.start, "a position was skipped"
            pending = work.token_ids == [PENDING]
            context[work.start :] = [self._sampled[work.sequence]] if pending else work.token_ids
            assert PENDING not in context and len(context) > work.start
            self._expect(work.sequence, context[: work.start], blocks)
            self._write(work.sequence, context, blocks, work.start)
            answers.append([])
            if work.sampling is not None:
                tokens = [next_token(context, work.sampling, each, work.output_index) for each in work.samples]
                if len(tokens) == 1:
                    sampled[work.sequence] = tokens[0]
                if work.sequence in self.fail:
                    self.fail.discard(work.sequence)
                    failed.append(number)
                else:
                    answers[-1] += tokens
        self._sampled = sampled
        return StepResult(plan.step, answers, failed)

    def land(self, sequence: int, tokens: Tokens[int], blocks: tuple[list[int], ...]) -> None:
        """The KV of `tokens` arrives from another worker, at any moment, steps in flight or not."""
        self._settle()
        self._contexts[sequence] = list(tokens)
        self._write(sequence, tokens, blocks, 0)

    def expect(self, sequence: int, tokens: Tokens[int], blocks: tuple[list[int], ...]) -> None:
        """The KV of all `tokens` of a sequence must be there."""
        self._settle()
        self._expect(sequence, tokens, blocks)

    def _expect(self, sequence: int, tokens: Tokens[int], blocks: tuple[list[int], ...]) -> None:
        for position, value in enumerate(fingerprints(tokens, sequence)):
            for place in self._places(blocks, position):
                assert self._kv.get(place) == value, f"position {position} of {len(tokens)} has KV of something else"

    def _write(self, sequence: int, tokens: Tokens[int], blocks: tuple[list[int], ...], start: int) -> None:
        for position, value in list(enumerate(fingerprints(tokens, sequence)))[start:]:
            for place in self._places(blocks, position):
                self._kv[place] = value

    def _places(self, blocks: tuple[list[int], ...], position: int) -> list[tuple[int, int, int]]:
        """(group, block, slot) of a position, in every group."""
        tables = zip(blocks, self._block_tokens, strict=True)
        found = [(group, table[position // size], position % size) for group, (table, size) in enumerate(tables)]
        assert all(block != NULL_BLOCK for _, block, _ in found)
        return found
