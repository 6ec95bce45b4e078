"""Runs scheduler and executor in one process, without services: prompts in, greedy tokens out."""

import time
from collections.abc import Callable
from itertools import count

from msgspec import structs

from benchmarks.limits.floor import Timing
from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import BlockManager
from engine.executor import Executor
from engine.plan import StepPlan, StepResult
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import Sequence
from engine.schedule.speculation import Speculation
from engine.start.sizing import step_tokens
from infra.config.engine import EngineConfig
from pricing.step_costs.fit import StepFit

GREEDY = Sampling(seed=0, temperature=0.0)
MakeSpeculation = Callable[[BlockManager, StepFit], Speculation]


def quiet(stage: str, percent: float) -> None:
    """Ignores the progress of loading, which is not measured."""


class Loop:
    """A worker's loop without its services. On a GPU a step is launched before its predecessor is collected."""

    def __init__(
        self,
        executor: Executor,
        config: EngineConfig,
        speculation: MakeSpeculation | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._executor = executor
        engine = executor.engine
        self._depth = engine.launch_depth
        self._flying = 0
        self.plan: StepPlan | None = None  # of the last turn
        self.result: StepResult | None = None
        batch = step_tokens(config, engine.backend.device)
        blocks = BlockManager(engine.pool.spec, engine.pool.counts, ahead=batch * self._depth)
        fit = StepFit()
        self.scheduler = Scheduler(
            blocks,
            SchedulerLimits(
                max_batch_tokens=batch,
                max_sequences=config.max_sequences,
                max_model_len=engine.model_config.max_model_len,
                max_in_flight=self._depth,
            ),
            fit=fit,
            speculation=speculation(blocks, fit) if speculation is not None else None,
        )

    def turn(self) -> bool:
        plan = self.scheduler.plan(self._clock())
        if moves := self.scheduler.take_moves():
            self._executor.move(moves)
        if plan is not None:
            self._executor.launch(plan)
            self._flying += 1
        collected = self._flying > 0 and (plan is None or self._flying == self._depth)
        if collected:
            self.result = self._executor.collect()
            self.scheduler.apply(self.result, self._clock())
            self._flying -= 1
        self.plan = plan
        return plan is not None or collected

    def finish(self) -> None:
        while self.turn():
            pass


NUMBERS = count()


def add(
    loop: Loop, prompts: list[list[int]], limits: Limits, sampling: Sampling = GREEDY, first_seed: int = 0
) -> list[Sequence]:
    """Adds a request for each prompt, which finds nothing in the cache; seeds are counted from `first_seed`."""
    sequences = []
    for seed, prompt in enumerate(prompts, first_seed):
        name, own = str(next(NUMBERS)), structs.replace(sampling, seed=seed)
        known = Prompt(prompt, len(prompt), salt=name)
        sequences.append(Sequence(AttemptKey(name, 0, 1), "benchmark", known, float("inf"), own, limits))
        loop.scheduler.add(sequences[-1])
    return sequences


def answers(sequences: list[Sequence]) -> list[list[int]]:
    return [[*each.tokens[each.prompt_tokens :]] for each in sequences]


def serve(
    executor: Executor, config: EngineConfig, prompts: list[list[int]], output: int
) -> tuple[Timing, list[list[int]]]:
    loop = Loop(executor, config)
    sequences = add(loop, prompts, Limits(max_tokens=output))
    begin = time.perf_counter()
    loop.finish()
    end = time.perf_counter()
    assert all(sequence.emitted == output for sequence in sequences)
    first = max(sequence.first_token_at for sequence in sequences)
    return Timing(first - begin, end - begin), answers(sequences)
