"""Runs scheduler and executor in one process, without services: prompts in, greedy tokens out."""

import time
from collections.abc import Callable

from benchmarks.limits.floor import Timing
from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import BlockManager
from engine.executor import Executor
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import Sequence
from engine.schedule.speculation import Speculation
from engine.start.sizing import step_tokens
from infra.config.engine import EngineConfig
from pricing.fit import StepFit

MakeSpeculation = Callable[[BlockManager, StepFit], Speculation]


def quiet(stage: str, percent: float) -> None:
    """Reports nothing: loading is not measured, and a table on standard output should stay one."""


class Loop:
    """Takes a worker's turns without its services. On a GPU a step is launched before its predecessor is collected."""

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
            self.scheduler.apply(self._executor.collect(), self._clock())
            self._flying -= 1
        return plan is not None or collected


def serve(
    executor: Executor, config: EngineConfig, prompts: list[list[int]], output: int
) -> tuple[Timing, list[list[int]]]:
    loop = Loop(executor, config)
    sequences = []
    for number, prompt in enumerate(prompts):
        sequence = Sequence(
            AttemptKey(str(number), 0, 1),
            gateway="benchmark",
            prompt=Prompt(prompt, len(prompt)),
            deadline=float("inf"),
            sampling=Sampling(seed=number, temperature=0.0),
            limits=Limits(max_tokens=output),
        )
        loop.scheduler.add(sequence)
        sequences.append(sequence)
    begin = time.perf_counter()
    while loop.turn():
        pass
    end = time.perf_counter()
    assert all(sequence.emitted == output for sequence in sequences)
    first = max(sequence.first_token_at for sequence in sequences)
    return Timing(first - begin, end - begin), [each.tokens[each.prompt_tokens :] for each in sequences]
