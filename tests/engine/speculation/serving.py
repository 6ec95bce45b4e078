"""Serves texts through scheduler and executor, with a proposer in the executor or without one, and counts guesses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import BlockManager
from engine.executor import Executor
from engine.plan import PENDING_DRAFT, StepPlan, StepResult
from engine.schedule import sequence as sequences
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.speculation import Speculation
from engine.speculation.proposers.model_proposer import ModelProposer
from engine.speculation.proposers.proposer import EngineProposer
from engine.start.load import LoadedEngine

REQUESTS = count()


@dataclass
class Guesses:
    """Counts what became of guesses."""

    steps: int = 0
    decodes: int = 0  # works that computed one own token
    guessed: int = 0  # of these, with guesses
    tokens: int = 0  # guesses
    pending: int = 0  # of these, unknown to the host when their step was planned
    foreseen: int = 0  # of these, what came before any that did not
    preemptions: int = 0
    cut: list[tuple[int, int]] = field(default_factory=list)  # work's output index, and the place of a wrong guess

    def count(self, plan: StepPlan, result: StepResult) -> None:
        self.steps += 1
        for index, work in enumerate(plan.works):
            own = len(work.token_ids) - len(work.proposed)
            self.decodes += work.sampling is not None and own == 1
            self.guessed += bool(work.proposed)
            self.tokens += len(work.proposed)
            self.pending += work.proposed.count(PENDING_DRAFT)
            right = len(result.accepted.get(index, []))
            self.foreseen += right
            if right < len(work.proposed):
                self.cut.append((work.output_index, right))


@dataclass
class Asked:
    """A prompt, and how many samples of how many tokens are wanted."""

    prompt: list[int]
    tokens: int
    sampling: Sampling
    samples: int = 1
    salt: str = ""
    stops: tuple[int, ...] = ()


class Serving:
    """Serves with `most` guesses a step; 0: without any."""

    def __init__(
        self,
        engine: LoadedEngine,
        proposer: ModelProposer | None,
        most: int,
        *,
        blocks: int = 0,
        batch: int = 256,
        typical: bool = False,
    ) -> None:
        """`blocks` of the pool: fewer than all need, and some are preempted. `typical`: see `Executor`."""
        counts = [min(blocks or each, each) for each in engine.pool.counts]
        manager = BlockManager(engine.pool.spec, counts, ahead=2 * batch)
        self._executor = Executor(engine, proposer=proposer, typical=typical)
        self._scheduler = Scheduler(
            manager,
            SchedulerLimits(
                max_batch_tokens=batch,
                max_sequences=16,
                max_model_len=engine.model_config.max_model_len,
                max_in_flight=engine.launch_depth,
            ),
            speculation=Speculation(manager, EngineProposer(), most) if most else None,
        )
        self._depth = engine.launch_depth
        self.guesses = Guesses()

    def run(self, asked: Sequence[Asked]) -> list[list[int]]:
        """Returns the tokens of each sample of each, in order."""
        found: dict[int, list[int]] = {}
        members: list[sequences.Sequence] = []
        for each in asked:
            name = f"r{next(REQUESTS)}"
            group = [
                sequences.Sequence(
                    AttemptKey(name, sample, 1),
                    "gateway",
                    Prompt(list(each.prompt), len(each.prompt), each.salt),
                    1e9,
                    each.sampling,
                    Limits(each.tokens, each.stops),
                )
                for sample in range(each.samples)
            ]
            self._scheduler.add(group[0], group[1:])
            members += group
        flying: list[StepPlan] = []
        while self._scheduler.load().running or self._scheduler.load().waiting or flying:
            plan = self._scheduler.plan(0.0)
            if moves := self._scheduler.take_moves():
                self._executor.move(moves)
            if plan is not None:
                self._executor.launch(plan)
                flying.append(plan)
            if flying and (plan is None or len(flying) == self._depth):
                result, begun = self._executor.collect(), flying.pop(0)
                self.guesses.count(begun, result)
                for progress in self._scheduler.apply(result, 0.0):
                    found.setdefault(progress.sequence.id, []).extend(progress.tokens)
            self._scheduler.check_invariants()
        self.guesses.preemptions = self._scheduler.load().preemptions
        return [found[each.id] for each in members]
