"""An executor small enough to be read in a minute, and strict: KV is a fingerprint of everything up to its token.

It runs a step at collect, as late as the seam allows, so that a block which was given away while a launched step still
writes to it is seen. Moves run in their order among the steps, and bytes land after all moves that were asked for
before. A step stores all its KV before it attends. Before a token is computed, the KV of every earlier position must
be, in the sequence's own block table, exactly what that sequence's own tokens give, and those of its tenant.
"""

from collections import deque
from collections.abc import Sequence as Tokens
from hashlib import blake2b

from core.messages import Sampling
from core.scores import Scores
from engine.plan import NULL_BLOCK, PENDING, BlockMove, Plan, Refusal, StepResult, Work
from tests.scores import scores_of

VOCABULARY = 11
STOP = 7


def fingerprints(tokens: Tokens[int], salt: str = "") -> list[bytes]:
    """The KV of each of `tokens`: it depends on all tokens up to it, and here also on whose they are."""
    found = [salt.encode()]
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


Place = tuple[int, int, int]
"""(group, block, position in the block)"""


def placed(tokens: Tokens[int], first: int, top: int | None) -> Scores | None:
    """Scores that tell each token and its place: of an output from index `first` on, or of a text; None: not wanted."""
    return (
        scores_of([100 * place + token for place, token in enumerate(tokens, first)], top) if top is not None else None
    )


def score(number: int, work: Work, result: StepResult) -> None:
    """Adds to a result what a work wants to know of its tokens and its prompt's."""
    tokens, rows, sampling = result.tokens[number], work.prompt_rows, work.sampling
    if sampling is not None and tokens:
        scores = [placed([token], work.output_index, sampling.logprobs) for token in tokens]
        result.scores.update({number: [each for each in scores if each is not None]} if scores[0] else {})
    if rows is not None:
        assert rows.first >= 0 and 0 < len(rows.targets) <= len(work.token_ids) - rows.first
        found = placed(rows.targets, work.start + rows.first + 1, rows.top)
        assert found is not None
        result.prompt_scores[number] = found


class StrictExecutor:
    """Computes plans against KV that is kept per (group, block, slot)."""

    def __init__(self, block_tokens: tuple[int, ...]) -> None:
        self._block_tokens = block_tokens
        self._kv: dict[Place, bytes] = {}
        self._host: dict[Place, bytes] = {}
        self._queue: deque[tuple[Plan, list[tuple[list[int], ...]]] | list[BlockMove]] = deque()
        self._results: deque[StepResult] = deque()
        self._contexts: dict[int, list[int]] = {}  # tokens of each sequence that were computed
        self._sampled: dict[int, int] = {}  # by the step before
        self.salts: dict[int, str] = {}  # by sequence
        self.known: dict[int, list[int]] = {}  # by sequence: what the host knows when it is launched
        self.fail: set[int] = set()  # sequences whose next sampled row is not finite
        self.refuse: set[int] = set()  # sequences whose grammar cannot be compiled
        self.in_flight = 0  # steps that were launched and not collected

    def launch(self, plan: Plan) -> None:
        """Consumes the plan: its block tables may change afterwards."""
        self.in_flight += 1
        self._queue.append((plan, [tuple(list(table) for table in work.blocks) for work in plan.works]))

    def move(self, moves: Tokens[BlockMove]) -> None:
        """Enqueues moves behind what was launched."""
        if moves:
            self._queue.append(list(moves))

    def collect(self) -> StepResult:
        """Runs the oldest launched step."""
        self.in_flight -= 1
        while not self._results:
            self._run()
        return self._results.popleft()

    def land(self, tokens: Tokens[int], blocks: tuple[list[int], ...], salt: str, held: int) -> None:
        """The KV of `tokens`, but for the held blocks, arrives from another worker, steps in flight or not.

        A launched step may still be to compute a held block: the first step that reads the block expects it there.
        """
        while any(isinstance(each, list) for each in self._queue):
            self._run()
        for position, value in enumerate(fingerprints(tokens, salt)):
            for place, size in zip(self._places(blocks, position), self._block_tokens, strict=True):
                if position >= held * size:
                    self._kv[place] = value

    def expect(self, tokens: Tokens[int], blocks: tuple[list[int], ...], salt: str) -> None:
        """The KV of all `tokens` of a sequence must be there."""
        for position, value in enumerate(fingerprints(tokens, salt)):
            for place in self._places(blocks, position):
                assert self._kv.get(place) == value, f"position {position} of {len(tokens)} has KV of something else"

    def _run(self) -> None:
        first = self._queue.popleft()
        if isinstance(first, list):
            for move in first:
                self._move(move)
        else:
            self._step(*first)

    def _move(self, move: BlockMove) -> None:
        assert move.target != NULL_BLOCK or move.kind == "out"
        source = self._host if move.kind == "in" else self._kv
        target = self._host if move.kind == "out" else self._kv
        for at in range(self._block_tokens[move.group]):
            value = source.get((move.group, move.source, at))
            target.pop((move.group, move.target, at), None)
            if value is not None:
                target[move.group, move.target, at] = value

    def _step(self, plan: Plan, tables: list[tuple[list[int], ...]]) -> None:
        contexts = []
        for work, blocks in zip(plan.works, tables, strict=True):
            pending = work.token_ids == [PENDING]
            context = [*self._contexts.get(work.sequence, ())] if pending else self._before(work)
            context += [self._sampled[work.sequence]] if pending else work.token_ids
            assert PENDING not in context and len(context) == work.start + len(work.token_ids)
            self._contexts[work.sequence] = context
            contexts.append(context)
            salt = self.salts[work.sequence]
            for position, value in list(enumerate(fingerprints(context, salt)))[work.start :]:
                for place in self._places(blocks, position):
                    self._kv[place] = value
        answers: list[list[int]] = []
        failed: list[int] = []
        refused: dict[int, Refusal] = {}
        sampled: dict[int, int] = {}
        for number, (work, blocks, context) in enumerate(zip(plan.works, tables, contexts, strict=True)):
            self.expect(context, blocks, self.salts[work.sequence])
            answers.append([])
            if work.sampling is not None:
                tokens = [next_token(context, work.sampling, sample, work.output_index) for sample in work.samples]
                sampled[work.sequence] = tokens[0]
                if work.sequence in self.fail:
                    self.fail.discard(work.sequence)
                    failed.append(number)
                elif work.sequence in self.refuse:
                    refused[number] = Refusal("it cannot be compiled", ours=work.sequence % 2 == 0)
                else:
                    answers[-1] += tokens
        self._sampled = sampled
        result = StepResult(plan.step, answers, failed, [], refused, {}, {})
        for number, work in enumerate(plan.works):
            score(number, work, result)
        self._results.append(result)

    def _before(self, work: Work) -> list[int]:
        """The tokens before a work's own, some of which this executor may never have computed for that sequence."""
        known = self.known[work.sequence]
        assert work.start < len(known)
        return known[: work.start]

    def _places(self, blocks: tuple[list[int], ...], position: int) -> list[Place]:
        """Where the KV of a position is, in every group."""
        tables = zip(blocks, self._block_tokens, strict=True)
        found = [(group, table[position // size], position % size) for group, (table, size) in enumerate(tables)]
        assert all(block != NULL_BLOCK for _, block, _ in found)
        return found
