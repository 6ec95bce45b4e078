"""Measures an engine in the shape of a well-known model, with random weights: decode steps and prompts, and floors.

A batch decodes over KV of random numbers, which is in the pool already, as if it had landed there, by steps as a worker
makes them: schedule, launch, collect. The floor of a step is the larger of two times: bytes of all weights and of the
batch's KV over the rate of a copy, and operations of the matrices over the rate of a large matrix product, both
measured in the same run. Prompts come one at a time, and are computed in chunks.
"""

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Literal

import torch

from benchmarks.engine.idle import Idle, KernelTime, by_kernel, idle_share, watched
from benchmarks.limits.device_time import Limits, limits_of
from benchmarks.limits.floor import Work, work_of
from benchmarks.models.random_weights import RandomWeights
from benchmarks.models.shapes import SHAPES, write_config
from benchmarks.processes.in_process import Loop, quiet, serve
from contracts.ids import AttemptKey
from contracts.kinds import Quantization
from contracts.kv.spec import blocks_for
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits as Ends
from contracts.messages.sampling import Sampling
from engine.backends.choice import serves_natively
from engine.device import choose_device, choose_dtype, dtype_name
from engine.executor import Executor
from engine.model.config import heads_of
from engine.schedule.sequence import Sequence
from engine.start.load import load_engine
from infra.config.engine import EngineConfig

WARM_UP_STEPS, TIMED_STEPS, PROFILED_STEPS = 8, 48, 8
"""Decode steps: before the clock starts, under it, and under the profiler, which slows the host."""
PROMPT_ROUNDS = 3
HEADROOM_TOKENS = WARM_UP_STEPS + TIMED_STEPS + PROFILED_STEPS + 8
"""Tokens that a sequence gets at most beside its context."""
MAX_TIMES_FLOOR, MIN_MATRIX_SHARE, MAX_IDLE_SHARE, TARGET_PROMPT_TOKENS = 1.2, 0.55, 0.05, 8192
"""Targets; the matrix share is that of a prompt of `TARGET_PROMPT_TOKENS`."""


@dataclass(frozen=True)
class Sizes:
    """Measured batches and prompts, and the tokens of a prompt's chunk.

    A batch is measured at the first context at which its KV fits. KV of Llama-3.1-8B takes 128 KiB a token: 256
    sequences of 2,048 tokens take 66 GiB, of 1,024 tokens 34 GiB, which fit beside 15 GiB of weights in 80 GB.
    """

    contexts: tuple[int, ...] = (2048, 1024)
    batches: tuple[int, ...] = (1, 8, 32, 128, 256)
    prompts: tuple[int, ...] = tuple(1 << power for power in range(7, 16))
    chunk: int = 8192


SIZES_OF_SHAPES = {shape: Sizes() for shape in SHAPES} | {"tiny": Sizes((100, 50), (1, 3), (16, 100), 64)}


@dataclass(frozen=True)
class Decoded:
    """The seconds of one of a batch's decode steps."""

    batch: int
    context: int
    seconds: float
    floor: float
    idle: Idle | None
    kernels: tuple[KernelTime, ...] = ()  # of WATCHED steps

    @property
    def met(self) -> bool:
        return self.seconds <= MAX_TIMES_FLOOR * self.floor


@dataclass(frozen=True)
class Read:
    """A prompt's time to its first token, in s, and shares of the matrix rate."""

    tokens: int
    seconds: float
    share: float
    with_attention: float
    kernels: tuple[KernelTime, ...] = ()  # of one such prompt, where it has a target

    @property
    def met(self) -> bool | None:
        return self.share >= MIN_MATRIX_SHARE if self.tokens == TARGET_PROMPT_TOKENS else None


class Shaped:
    """Measures one engine with random weights beside the device's limits."""

    def __init__(
        self,
        shape: str,
        device: str,
        dtype: Literal["auto", "fp32", "bf16", "fp16"],
        quantization: Quantization = "none",
    ) -> None:
        self.shape, self.sizes = shape, SIZES_OF_SHAPES[shape]
        self.device = choose_device(device)
        with TemporaryDirectory() as directory:
            write_config(Path(directory), shape)
            self.config = EngineConfig(
                model=directory,
                device=device,
                dtype=dtype,
                max_model_len=max(*self.sizes.prompts, *self.sizes.contexts) + HEADROOM_TOKENS,
                max_batch_tokens=self.sizes.chunk,
                max_sequences=max(self.sizes.batches),
                quantization=quantization,
            )
            self.dtype = choose_dtype(dtype, self.device, widened=serves_natively(self.config))
            # Measured first: once the pool has taken what memory there is, nothing as large can be copied.
            self.limits: Limits = limits_of(self.device, self.dtype)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(self.device)  # or the pool would leave memory for the copies
            open_weights = partial(RandomWeights, device=self.device, dtype=self.dtype)
            self.executor = Executor(load_engine(self.config, quiet, open_weights))
        assert self.executor.engine.backend.dtype == self.dtype, "its limits would be another format's"
        self.work: Work = work_of(self.executor.engine.model_config, self.dtype, quantization)
        with torch.inference_mode():
            for layer in self.executor.engine.pool.layers:
                layer[1:].normal_()  # all but the null block

    def decode(self, batch: int) -> Decoded | None:
        """Measures a decode step at a context and a few tokens more, in s; None where the pool is too small."""
        context = self.context_of(batch)
        if context is None:
            return None
        loop = Loop(self.executor, self.config)
        sequences = self._landed(loop, batch, context)
        for _ in range(WARM_UP_STEPS):
            loop.turn()
        before = sequences[0].emitted
        begin = perf_counter()
        for _ in range(TIMED_STEPS):
            loop.turn()
        seconds = (perf_counter() - begin) / TIMED_STEPS
        assert all(each.emitted == before + TIMED_STEPS for each in sequences), "a step without all sequences"
        ran = watched(partial(_turns, loop)) if self.device.type == "cuda" else []
        for each in sequences:
            loop.scheduler.release(each)
        while loop.turn():
            pass
        floor, idle = self._floor(batch, context + WARM_UP_STEPS + TIMED_STEPS // 2), idle_share(ran) if ran else None
        return Decoded(batch, context, seconds, floor, idle, tuple(by_kernel(ran)))

    def context_of(self, batch: int) -> int | None:
        """Returns the context at which a batch is measured; None where the pool is too small for any."""
        pool = self.executor.engine.pool
        tokens = pool.spec.groups[0].block_tokens
        fitting = (
            each for each in self.sizes.contexts if batch * blocks_for(each + HEADROOM_TOKENS, tokens) < pool.counts[0]
        )
        return next(fitting, None)

    def read(self, tokens: int) -> Read:
        config = self.executor.engine.model_config
        times = []
        for _ in range(PROMPT_ROUNDS + 1):
            prompt = [random.randrange(config.vocab_size) for _ in range(tokens)]
            times.append(serve(self.executor, self.config, [prompt], 1)[0].total)
        seconds = median(times[1:])
        ran = []
        if self.device.type == "cuda" and tokens == TARGET_PROMPT_TOKENS:
            ran = watched(lambda: serve(self.executor, self.config, [prompt], 1))
        matrices = self.work.operations(tokens, 1)
        pairs = tokens * (tokens + 1) // 2
        heads = heads_of(config.layers[0])
        attention = 4 * len(config.layers) * heads.heads * heads.head_dim * pairs
        most = seconds * self.limits.multiply
        return Read(tokens, seconds, matrices / most, (matrices + attention) / most, tuple(by_kernel(ran)))

    def header(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "a CPU"
        return (
            f"{name}, torch {torch.__version__}; {self.shape} with random weights, {dtype_name(self.dtype)}, "
            f"quantization {self.config.quantization}, {self.executor.engine.backend.name} operators; "
            f"copy {self.limits.copy / 1e9:.0f} GB/s, matrix product {self.limits.multiply / 1e12:.1f} TFLOP/s"
        )

    def _floor(self, batch: int, context: int) -> float:
        read = self.work.read(batch, batch) + batch * context * self.work.token_bytes
        return max(read / self.limits.copy, self.work.operations(batch, batch) / self.limits.multiply)

    def _landed(self, loop: Loop, batch: int, context: int) -> list[Sequence]:
        vocabulary = self.executor.engine.model_config.vocab_size
        sequences = [
            Sequence(
                AttemptKey(str(number), 0, 1),
                gateway="benchmark",
                prompt=Prompt([random.randrange(vocabulary) for _ in range(context)], context),
                deadline=float("inf"),
                landing=True,
            )
            for number in range(batch)
        ]
        for sequence in sequences:
            loop.scheduler.add(sequence)
        assert loop.scheduler.plan(0.0) is None and len(loop.scheduler.take_admitted()) == batch
        for seed, sequence in enumerate(sequences):
            first, sampling = [random.randrange(vocabulary)], Sampling(seed=seed, temperature=0.0)
            loop.scheduler.adopt(sequence, {0: first}, sampling, Ends(max_tokens=HEADROOM_TOKENS))
        return sequences


def _turns(loop: Loop) -> None:
    for _ in range(PROFILED_STEPS):
        loop.turn()
