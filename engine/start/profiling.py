"""Measures at start how fast the engine computes prompts and moves blocks."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import get_args

import torch
from msgspec import structs

from contracts.errors import ConfigError, DeviceMemoryError
from contracts.kinds import Codec
from contracts.kv.spec import PayloadConversion, WireForm, blocks_for
from contracts.messages.sampling import Sampling
from contracts.scores import MAX_TOP_LOGPROBS
from engine.device import device_errors
from engine.engine import Engine
from engine.executor import Executor
from engine.plan import BlockMove, StepPlan, Work
from infra.config.engine import EngineConfig
from pricing.step_costs.seed import MeasuredStep

FIRST_PROFILE_TOKENS = 16
MAX_CPU_PROFILE_TOKENS = 256
"""On a CPU only the rate is measured, not the memory, and longer steps would not change it."""
MEASURING_S = 0.5
MAX_MEASUREMENTS = 7
PLAIN_SAMPLING = Sampling(seed=0)
FILTERED_SAMPLING = Sampling(seed=0, top_k=50, top_p=0.9, logprobs=MAX_TOP_LOGPROBS)
ADJUSTED_SAMPLING = Sampling(
    seed=0,
    repetition_penalty=1.1,
    logit_bias=((0, 0.5),),
    allowed_token_ids=(0, 1),
    bad_words=((1,),),
)
FULL_SAMPLING = structs.replace(
    ADJUSTED_SAMPLING, top_k=FILTERED_SAMPLING.top_k, top_p=FILTERED_SAMPLING.top_p, logprobs=MAX_TOP_LOGPROBS
)
"""The options that take the most memory to sample and to score."""
MOVED_BYTES = 8 << 20
"""Bytes moved to the host tier and back to measure its speed, about."""

WithBlocks = Callable[[Sequence[int]], Engine]
"""Makes an engine over a temporary pool, given the blocks of each KV group."""


def prompt_steps(
    config: EngineConfig, longest: int, device: torch.device, groups: int, make: WithBlocks
) -> list[MeasuredStep]:
    """Measures prompt steps for sequences of up to `longest` tokens, on temporary pools; the largest step is last.

    On CUDA the largest possible steps run, because their memory cannot be used for KV: of whole prompts, of a chunk
    behind a prefix, with adapters if they are on, and of rows of logits. On a CPU steps are limited to
    about a second. Raises `ConfigError` if the largest step does not fit into the device's memory.
    """
    seconds = partial(_seconds, block_tokens=config.block_size, groups=groups, make=make)
    try:
        if device.type == "cuda":
            # Logits, counts and noise of every row may take more memory than the longest prompt. The other steps
            # compile the kernels of short prompts, of each kind of sampling and of moved blocks.
            for sampling in (FULL_SAMPLING, FILTERED_SAMPLING):
                seconds(widest_step(config), sampling=sampling)
            length = first_step(config, longest)
            seconds([length], sampling=ADJUSTED_SAMPLING)
            first = MeasuredStep(length, seconds([length], sampling=PLAIN_SAMPLING))
            warm_up(make([3] * groups))
            run_largest_chunk(config, longest, groups, make)
            lengths = largest_step(config, longest)
            return [first, MeasuredStep(sum(lengths), seconds(lengths, sampling=FILTERED_SAMPLING))]
        length = first_step(config, longest)
        first = MeasuredStep(length, seconds([length]))
        longer = longer_step(config, longest, length / first.seconds)
        return [first, MeasuredStep(longer, seconds([longer]))] if longer > length else [first]
    except DeviceMemoryError:
        why = f"a step of this many tokens does not fit into the memory of {device} beside the weights"
        raise ConfigError("max_batch_tokens", config.max_batch_tokens, why) from None


def warm_up(engine: Engine) -> None:
    """Compiles the kernels that move, convert and copy blocks, on a pool with three blocks in each group.

    Raises `DeviceError` if the device fails.
    """
    pool = engine.pool
    with torch.inference_mode(), device_errors():
        engine.backend.warm_up(engine.model_config, pool.layers)
        if pool.devices is not None:
            pool.devices.warm_up()
        codecs: tuple[Codec, ...] = get_args(Codec)
        for number, group in enumerate(pool.spec.groups):
            layer = group.layers[0]
            pool.move([BlockMove("copy", number, 1, 2)])
            pool.write(number, layer, [2], pool.read(number, layer, [1]))
            for codec in codecs if not pool.spec.quantized else ():
                form = WireForm(pool.spec.dtype, group.block_tokens, codec)
                pool.convert(PayloadConversion(form, number, layer, [2], 0, 0), pool.read(number, layer, [1], codec))


def host_rate(engine: Engine, slots: int) -> float:
    """Returns bytes per second between the pool and a host tier of `slots`, both empty; 0 without a tier."""
    if not slots:
        return 0.0
    executor, pool = Executor(engine), engine.pool
    block_bytes = pool.spec.groups[0].layers_bytes()
    moves = out_and_in(pool.counts[0], slots, block_bytes)

    def there_and_back() -> None:
        executor.move(moves)
        if engine.backend.device.type == "cuda":
            torch.cuda.synchronize(engine.backend.device)

    return len(moves) * block_bytes / fastest(there_and_back)


def largest_step(config: EngineConfig, max_model_len: int) -> list[int]:
    """Returns the prompt lengths of the largest step, which fill the token budget."""
    whole, rest = divmod(config.max_batch_tokens, max_model_len)
    lengths = [max_model_len] * whole + ([rest] if rest else [])
    return lengths[: config.max_sequences]


def widest_step(config: EngineConfig) -> list[int]:
    """Returns the prompt lengths of the step with the most rows of logits: one token of each sequence."""
    return [1] * min(config.max_sequences, config.max_batch_tokens)


def largest_chunk(config: EngineConfig, max_model_len: int) -> tuple[int, int]:
    """Returns start and tokens of the end of the longest prompt: as many as the budget allows behind a prefix."""
    start = max(max_model_len - config.max_batch_tokens, config.block_size if max_model_len > config.block_size else 0)
    return start, max_model_len - start


def run_largest_chunk(config: EngineConfig, max_model_len: int, groups: int, make: WithBlocks) -> None:
    """Runs the step whose attention reads the most KV, which masks and expanded keys may take memory for."""
    start, tokens = largest_chunk(config, max_model_len)
    plan, blocks = chunk(start, tokens, config.block_size, groups)
    engine = make([blocks] * groups)
    with engine.adapters.blank() if engine.adapters is not None else nullcontext("") as adapter:
        executor = Executor(engine)
        executor.launch(structs.replace(plan, works=[structs.replace(each, adapter=adapter) for each in plan.works]))
        executor.collect()


def first_step(config: EngineConfig, max_model_len: int) -> int:
    return min(FIRST_PROFILE_TOKENS, config.max_batch_tokens, max_model_len)


def longer_step(config: EngineConfig, max_model_len: int, tokens_per_second: float) -> int:
    return min(int(tokens_per_second * MEASURING_S), MAX_CPU_PROFILE_TOKENS, config.max_batch_tokens, max_model_len)


def prompts(lengths: list[int], block_tokens: int, groups: int, sampling: Sampling) -> tuple[StepPlan, int]:
    """Returns a step of whole prompts, and the blocks that it needs in each KV group, null block included."""
    works, first = [], 1
    for sequence, length in enumerate(lengths):
        end = first + blocks_for(length, block_tokens)
        tokens = [0] * length
        text = tokens if sampling.looks_back else None
        blocks = (list(range(first, end)),) * groups
        works.append(Work(sequence, 0, tokens, blocks, sampling, tokens=text, prompt_tokens=length))
        first = end
    return StepPlan(0, works), first


def chunk(start: int, tokens: int, block_tokens: int, groups: int) -> tuple[StepPlan, int]:
    """Returns a step of one chunk behind a prefix, and the blocks that it needs in each KV group.

    All blocks of the prefix are one block, so that a long prefix takes no memory.
    """
    prefix, end = start // block_tokens, blocks_for(start + tokens, block_tokens)
    blocks = ([1] * prefix + list(range(2, 2 + end - prefix)),) * groups
    return StepPlan(0, [Work(0, start, [0] * tokens, blocks, PLAIN_SAMPLING)]), 2 + end - prefix


def out_and_in(block_count: int, slots: int, block_bytes: int) -> list[BlockMove]:
    """Returns moves of some blocks to the host tier and back."""
    count = min(block_count - 1, slots, max(1, MOVED_BYTES // block_bytes))
    away = [BlockMove("out", 0, slot + 1, slot) for slot in range(count)]
    return away + [BlockMove("in", 0, slot, slot + 1) for slot in range(count)]


def fastest(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the least seconds that `work` takes in two runs, or in up to eight short runs.

    Other load on the machine only makes runs slower, so the fastest is the best estimate.
    """
    begin = clock()
    work()
    now = clock()
    best = now - begin
    for _ in range(MAX_MEASUREMENTS):
        before = now
        work()
        now = clock()
        best = min(best, now - before)
        if now - begin > MEASURING_S:
            break
    return max(best, 1e-9)


def _seconds(
    lengths: list[int], *, block_tokens: int, groups: int, make: WithBlocks, sampling: Sampling = PLAIN_SAMPLING
) -> float:
    plan, blocks = prompts(lengths, block_tokens, groups, sampling)
    executor = Executor(make([blocks] * groups))

    def step() -> None:
        executor.launch(plan)
        executor.collect()

    return fastest(step)
