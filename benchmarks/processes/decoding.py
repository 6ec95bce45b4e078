"""Times the decode steps of a batch of texts, one at a time, so that several kinds of batches can take turns."""

from collections.abc import Callable
from time import perf_counter, thread_time

import torch

from engine.executor import Executor
from engine.plan import StepPlan, Work

MakeWork = Callable[[int, list[int]], Work]
"""Makes the work of a text, by its number, of all its tokens, the last of which is to be computed."""


class Texts:
    """Keeps the texts of a batch, and computes their steps. Several may share one executor, and its blocks."""

    def __init__(self, executor: Executor, batch: int, length: int, work: MakeWork, seed: int = 0) -> None:
        self._executor = executor
        self._work = work
        generator = torch.Generator().manual_seed(seed)
        vocabulary = executor.engine.model_config.vocab_size
        self._texts: list[list[int]] = torch.randint(vocabulary, (batch, length), generator=generator).tolist()
        self._steps = 0
        alone = torch.get_num_threads() == 1 and executor.engine.backend.device.type == "cpu"
        self._clock = thread_time if alone else perf_counter

    def step(self) -> float:
        plan = StepPlan(self._steps, [self._work(index, text) for index, text in enumerate(self._texts)])
        self._steps += 1
        begin = self._clock()
        self._executor.launch(plan)
        result = self._executor.collect()
        seconds = self._clock() - begin
        assert not result.failed and not result.none_left
        for text, tokens in zip(self._texts, result.tokens, strict=True):
            text += tokens
        return seconds
