"""Scheduler and executor in one process, without services: prompts in, greedy tokens out."""

import time

from benchmarks.floor import Timing
from core.config import EngineConfig
from core.ids import SequenceKey
from core.messages import Limits, Sampling
from engine.blocks import BlockManager
from engine.executor import Executor
from engine.scheduler import Scheduler
from engine.sequence import Sequence


def quiet(stage: str, percent: float) -> None:
    """Loading is not measured, and a table on standard output should stay one."""


def serve(
    executor: Executor, config: EngineConfig, prompts: list[list[int]], output: int
) -> tuple[Timing, list[list[int]]]:
    """All requests at once, each for `output` tokens, with an empty cache: how long it took, and the tokens."""
    scheduler = Scheduler(
        BlockManager(executor.spec, executor.block_count),
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        max_model_len=executor.model_config.max_model_len,
    )
    sequences = []
    for number, prompt in enumerate(prompts):
        sequence = Sequence(
            SequenceKey(str(number), 0),
            attempt=1,
            gateway="benchmark",
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            deadline=float("inf"),
            sampling=Sampling(seed=number, temperature=0.0),
            limits=Limits(max_tokens=output),
        )
        scheduler.add(sequence)
        sequences.append(sequence)
    begin = time.perf_counter()
    while scheduler.has_work():
        plan = scheduler.plan(time.perf_counter())
        assert plan is not None, "work, but no plan"
        executor.move(scheduler.take_moves())
        executor.launch(plan)
        scheduler.apply(executor.collect(), time.perf_counter())
    end = time.perf_counter()
    assert all(sequence.emitted == output for sequence in sequences)
    first = max(sequence.first_token_at for sequence in sequences)
    return Timing(first - begin, end - begin), [each.tokens[each.prompt_tokens :] for each in sequences]
