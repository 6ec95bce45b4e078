"""What a start measures before it sizes anything: the steps that it runs, and how it takes their time."""

import time
from collections.abc import Callable

from core.config import EngineConfig
from core.kvspec import blocks_for
from core.messages import Sampling
from engine.plan import BlockMove, Plan, Work

FIRST_TOKENS = 16
LONGER_TOKENS = 256
"""A CPU's profiling steps have at most so many tokens: their memory tells nothing, and the rate is known by then."""
SECONDS = 0.5
REPEATS = 3
PLAIN = Sampling(seed=0)
FILTERED = Sampling(seed=0, top_k=50, top_p=0.9)
"""What takes most memory to sample."""
MOVED_BYTES = 8 << 20
"""About what is moved to the host tier and back to know its speed."""


def largest_step(config: EngineConfig, max_model_len: int) -> list[int]:
    """Lengths of the sequences of the largest step: prompts that fill `max_batch_tokens`."""
    whole, rest = divmod(config.max_batch_tokens, max_model_len)
    lengths = [max_model_len] * whole + ([rest] if rest else [])
    return lengths[: config.max_sequences]


def widest_step(config: EngineConfig) -> list[int]:
    """Lengths of the sequences of the step that samples most: one token of each, and a row of logits."""
    return [1] * min(config.max_sequences, config.max_batch_tokens)


def first_step(config: EngineConfig, max_model_len: int) -> int:
    """Tokens of the step that shows a CPU's speed about."""
    return min(FIRST_TOKENS, config.max_batch_tokens, max_model_len)


def longer_step(config: EngineConfig, max_model_len: int, tokens_per_second: float) -> int:
    """Tokens of the step that measures it: what takes about `SECONDS`, within bounds."""
    return min(int(tokens_per_second * SECONDS), LONGER_TOKENS, config.max_batch_tokens, max_model_len)


def prompts(lengths: list[int], block_tokens: int, sampling: Sampling) -> tuple[Plan, int]:
    """A step of whole prompts of `lengths` tokens, and the blocks that its pool needs, the null block included."""
    works, first = [], 1
    for sequence, length in enumerate(lengths):
        end = first + blocks_for(length, block_tokens)
        works.append(Work(sequence, 0, [0] * length, (list(range(first, end)),), sampling))
        first = end
    return Plan(0, works), first


def out_and_in(block_count: int, slots: int, block_bytes: int) -> list[BlockMove]:
    """Some blocks go to the host tier and come back to where they were."""
    count = min(block_count - 1, slots, max(1, MOVED_BYTES // block_bytes))
    away = [BlockMove("out", 0, slot + 1, slot) for slot in range(count)]
    return away + [BlockMove("in", 0, slot, slot + 1) for slot in range(count)]


def fastest(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that `work` takes, warm and undisturbed: the best of two runs, or of more where they are short."""
    begin = clock()
    work()
    now = clock()
    best = now - begin
    for _ in range(REPEATS):
        before = now
        work()
        now = clock()
        best = min(best, now - before)
        if now - begin > SECONDS:
            break
    return max(best, 1e-9)
