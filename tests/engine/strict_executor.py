"""An executor small enough to be read in a minute, and strict: KV is a fingerprint of everything up to its token.

It runs a step at collect, as late as the seam allows, so that a block which was given away while a launched step still
writes to it is seen. Moves run in their order among the steps, and bytes land after all moves that were asked for
before. A step stores all its KV before it attends. Before a token is computed, the KV of every earlier position that it
sees must be, in the sequence's own block table, exactly what that sequence's own tokens give, and those of its tenant.
"""

from collections import deque
from collections.abc import Sequence as Tokens
from hashlib import blake2b

from contracts.kv.spec import KVSpec
from contracts.messages.sampling import Sampling
from contracts.scores import Scores
from engine.plan import NULL_BLOCK, PENDING_TOKEN, BlockMove, GrammarRefusal, StepPlan, StepResult, Work
from engine.speculation.verify.verification import DRAWN, accepted_drafts, draft_paths, kv_moves, verified_rows
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


def score(number: int, work: Work, draws: list[int], result: StepResult) -> None:
    """Adds to a result what a work wants to know of its draws and its prompt's tokens."""
    rows, sampling = work.prompt_rows, work.sampling
    if sampling is not None and result.tokens[number]:
        of_samples = [draws] if work.proposed else [[token] for token in draws]
        scores = [placed(tokens, work.output_index, sampling.logprobs) for tokens in of_samples]
        result.scores.update({number: [each for each in scores if each is not None]} if scores[0] else {})
    if rows is not None:
        assert rows.first >= 0 and 0 < len(rows.targets) <= len(work.token_ids) - rows.first
        found = placed(rows.targets, work.start + rows.first + 1, rows.top)
        assert found is not None
        result.prompt_scores[number] = found


class StrictExecutor:
    """Computes plans against KV that is kept per (group, block, slot)."""

    def __init__(self, spec: KVSpec) -> None:
        self._groups = spec.groups
        self._kv: dict[Place, bytes] = {}
        self._host: dict[Place, bytes] = {}
        self._queue: deque[tuple[StepPlan, list[tuple[list[int], ...]]] | list[BlockMove]] = deque()
        self._results: deque[StepResult] = deque()
        self._contexts: dict[int, list[int]] = {}  # tokens of each sequence that were computed
        self._sampled: dict[int, int] = {}  # by the step before
        self.salts: dict[int, str] = {}  # by sequence
        self.known: dict[int, Tokens[int]] = {}  # by sequence: what the host knows when it is launched
        self.fail: set[int] = set()  # sequences whose next sampled row is not finite
        self.refuse: set[int] = set()  # sequences whose grammar cannot be compiled
        self.in_flight = 0  # steps that were launched and not collected

    def launch(self, plan: StepPlan) -> None:
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

    def land(self, tokens: Tokens[int], blocks: tuple[list[int], ...], salt: str, held: Tokens[int]) -> None:
        """The KV of `tokens`, but for each group's held blocks, arrives from another worker, steps in flight or not.

        A launched step may still be to compute a held block: the first step that reads the block expects it there.
        """
        while any(isinstance(each, list) for each in self._queue):
            self._run()
        for position, value in enumerate(fingerprints(tokens, salt)):
            for group, count in enumerate(held):
                if position >= count * self._groups[group].block_tokens:
                    self._kv[self._place(group, blocks, position)] = value

    def expect(self, tokens: Tokens[int], blocks: tuple[list[int], ...], salt: str, start: int | None = None) -> None:
        """The KV of `tokens` of a sequence must be there: what a query at `start` sees, or one behind them all."""
        start = len(tokens) if start is None else start
        for position, value in enumerate(fingerprints(tokens, salt)):
            for group, each in enumerate(self._groups):
                if not each.window or position > start - each.window:
                    assert self._kv.get(self._place(group, blocks, position)) == value, (
                        f"position {position} of {len(tokens)} has KV of something else, in group {group}"
                    )

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
        for at in range(self._groups[move.group].block_tokens):
            value = source.get((move.group, move.source, at))
            target.pop((move.group, move.target, at), None)
            if value is not None:
                target[move.group, move.target, at] = value

    def _step(self, plan: StepPlan, tables: list[tuple[list[int], ...]]) -> None:
        contexts = []
        for work, blocks in zip(plan.works, tables, strict=True):
            pending = work.token_ids == [PENDING_TOKEN]
            context = [*self._contexts.get(work.sequence, ())] if pending else self._before(work)
            context += [self._sampled[work.sequence]] if pending else [*work.token_ids]
            assert PENDING_TOKEN not in context and len(context) == work.start + len(work.token_ids)
            self._contexts[work.sequence] = context
            contexts.append(context)
            values = fingerprints(context, self.salts[work.sequence])
            if work.parents:
                own = context[: -len(work.proposed)]
                values[len(own) :] = [
                    fingerprints([*own, *way], self.salts[work.sequence])[-1] for way in draft_paths(work)
                ]
            for position, value in list(enumerate(values))[work.start :]:
                for group in range(len(self._groups)):
                    self._kv[self._place(group, blocks, position)] = value
        answers: list[list[int]] = []
        draws: list[list[int]] = []
        failed: list[int] = []
        refused: dict[int, GrammarRefusal] = {}
        accepted: dict[int, list[int]] = {}
        sampled: dict[int, int] = {}
        for number, (work, blocks, context) in enumerate(zip(plan.works, tables, contexts, strict=True)):
            text = context[: -len(work.proposed)] if work.parents else context
            self.expect(text, blocks, self.salts[work.sequence], work.start)
            answers.append([])
            draws.append([])
            if work.sampling is not None:
                tokens = draws[-1] = self._draws(work, context, work.sampling)
                if work.proposed:
                    rows, outcome = verified_rows(work, tokens, [DRAWN] * len(tokens))
                    assert outcome == DRAWN
                    tokens = draws[-1] = [tokens[row] for row in rows]
                    right = accepted[number] = accepted_drafts(work, tokens)
                    for source, target in kv_moves(work, right, len(tokens)):
                        for group in range(len(self._groups)):
                            value = self._kv[self._place(group, blocks, source)]
                            self._kv[self._place(group, blocks, target)] = value
                sampled[work.sequence] = tokens[0]
                if work.sequence in self.fail:
                    self.fail.discard(work.sequence)
                    failed.append(number)
                elif work.sequence in self.refuse:
                    refused[number] = GrammarRefusal("it cannot be compiled", by_worker=work.sequence % 2 == 0)
                else:
                    answers[-1] += tokens
        self._sampled = sampled
        result = StepResult(plan.step, answers, failed, [], refused, {}, {}, accepted)
        for number, work in enumerate(plan.works):
            score(number, work, draws[number], result)
        self._results.append(result)

    def _draws(self, work: Work, context: list[int], sampling: Sampling) -> list[int]:
        """The draws of each row, behind each guess, or of each sample."""
        index, own = work.output_index, len(context) - len(work.proposed)
        if not work.proposed:
            return [next_token(context, sampling, sample, index) for sample in work.samples]
        (sample,) = work.samples
        assert tuple(context[own:]) == work.proposed, "guesses are the last of a work's tokens"
        every = [(), *draft_paths(work)]
        return [next_token([*context[:own], *way], sampling, sample, index + len(way)) for way in every]

    def _before(self, work: Work) -> list[int]:
        """The tokens before a work's own, some of which this executor may never have computed for that sequence."""
        known = self.known[work.sequence]
        assert work.start < len(known)
        return list(known[: work.start])

    def _place(self, group: int, blocks: tuple[list[int], ...], position: int) -> Place:
        """Where the KV of a position is, in a group."""
        size = self._groups[group].block_tokens
        block = blocks[group][position // size]
        assert block != NULL_BLOCK, f"position {position} has no block in group {group}"
        return group, block, position % size
