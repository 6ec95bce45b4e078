"""Runs plans on one device: plan → batch → forward → sample, launched now and collected later."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from msgspec import structs
from torch import Tensor

from core.config import Codec, EngineConfig
from core.costs import Rates
from core.errors import ConfigError, DeviceMemoryError
from core.kvspec import KVSpec, Piece, WireForm, blocks_for
from core.messages import Sampling
from core.model_location import locate
from core.records import Memory
from core.sizes import format_bytes
from core.status import Progress
from engine.backends.base import DecodeSteps
from engine.backends.choice import choose
from engine.backends.sampler import Draw
from engine.device import choose_device, choose_dtype, dtype_name
from engine.device_errors import device_errors
from engine.kv.host_tier import HostTier
from engine.kv.pool import KVPool, make_spec
from engine.model.batch import BlockTables, Sampled, build_batch
from engine.model.config import ModelConfig, computation, read_config
from engine.model.linear import LinearFactory
from engine.model.transformer import Model
from engine.model.weights import Checkpoint
from engine.plan import BlockMove, Plan, StepResult, Work
from engine.start.profiling import (
    FILTERED,
    PLAIN,
    fastest,
    first_step,
    largest_step,
    longer_step,
    out_and_in,
    prompts,
    widest_step,
)
from engine.start.sizing import (
    available_memory,
    cpu_spare,
    cuda_spare,
    host_slots,
    longest_that_fits,
    pool_blocks,
    refuse_impossible,
    refuse_large_weights,
    refuse_more_than,
)

LOG = logging.getLogger(__name__)
IN_FLIGHT = 2
"""Plans that may be launched and not yet collected."""

OnLayer = Callable[[Plan, int, int], None]


@dataclass(frozen=True)
class Launched:
    """A step whose result is on its way to the host."""

    plan: Plan
    sampled_works: tuple[int, ...]
    answer: Tensor  # [2, samples] int64 on the host: tokens, and 1 where the logits were finite
    done: torch.cuda.Event | None


class Executor:
    """A model, its KV pool, and at most `IN_FLIGHT` steps under way. Used by one thread."""

    def __init__(
        self,
        config: EngineConfig,
        progress: Progress,
        on_layer: OnLayer | None = None,
        open_weights: Callable[[Path], Checkpoint] = Checkpoint,
    ) -> None:
        """Loads the model and makes the pool, reporting stages and percent.

        `on_layer(plan, group, layer)` is called on this thread when that layer's KV of a step has been stored (on CUDA:
        enqueued, and ordered before what `KVPool.read` copies), before its attention is computed.
        `open_weights` gives the tensors of the model's directory.
        Raises `ModelError` for a model that is missing, broken or not supported, `ConfigError` for settings that
        do not fit it or this machine.
        """
        self.device = choose_device(config.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # events are recorded on the stream of this thread's device
        self.dtype = choose_dtype(config.dtype, self.device)
        refuse_impossible(config, self.device)
        directory = locate(config.model, progress)
        progress("reading the config", 0.0)
        self.model_config: ModelConfig = read_config(directory, config.max_model_len)
        self.quantization = config.quantization
        self._backend = choose(config, self.device, self.dtype, self.model_config)
        checkpoint = open_weights(directory)
        self.parameters = checkpoint.parameters()
        refuse_large_weights(config, self.parameters, self.dtype, self.device)
        self._model = self._load(checkpoint, progress)
        progress("hashing weights", 0.0)
        digest = checkpoint.digest(computation(self.model_config) + config.quantization.encode())
        self.spec: KVSpec = make_spec(self.model_config, self.dtype, config.block_size, digest)
        self._block_size = config.block_size
        self.on_layer: OnLayer | None = None
        self._launched: deque[Launched] = deque()
        self._before: Sampled | None = None
        self._tables = BlockTables()
        self._graphs: DecodeSteps | None = None
        progress("profiling", 0.0)
        prompt_rate = self._profile(config)
        progress("making the KV pool", 0.0)
        blocks = self._blocks(config)
        self._tier = self._make_tier(config, blocks)
        self._use_pool(blocks, self._tier)
        self.pool.enter(torch.zeros(1, dtype=torch.int64))  # what the first requests will use
        self._shorten()
        self.rates = Rates(prompt_rate, self._host_rate())
        self.memory = self._memory()
        if config.decode_graphs == "on":
            most, longest = min(config.max_sequences, config.max_batch_tokens), self.model_config.max_model_len
            with torch.inference_mode(), device_errors():
                self._graphs = self._backend.decode_steps(
                    self._model, self._attention, most, longest, IN_FLIGHT, progress
                )
        self.on_layer = on_layer
        self._log()

    @property
    def operators(self) -> str:
        """Whose operators compute: `native`, `triton` or `torch`."""
        return self._backend.name

    @property
    def host_slots(self) -> int:
        """Blocks that the host tier holds; 0: there is none."""
        return self._tier.slots if self._tier is not None else 0

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Carries moves out in order, after all that was launched and before all that is launched or lands later."""
        with torch.inference_mode(), device_errors():
            self.pool.move(moves)

    def launch(self, plan: Plan) -> None:
        """Starts a step. On a CPU it is over on return; on CUDA it runs on. At most `IN_FLIGHT` may be uncollected.

        Raises `DeviceError`, as `move` and `collect` do, if the device fails: then or in anything enqueued before.
        """
        assert len(self._launched) < IN_FLIGHT, "collect before launching a third step"
        with torch.inference_mode(), device_errors():
            self._launched.append(self._run(plan))

    def collect(self) -> StepResult:
        """The result of the oldest launched step; waits for it."""
        step = self._launched.popleft()
        if step.done is not None:
            with device_errors():
                step.done.synchronize()
        found, finite = step.answer.tolist()
        works = step.plan.works
        tokens: list[list[int]] = [[] for _ in works]
        failed = []
        begin = 0
        for work in step.sampled_works:
            end = begin + len(works[work].samples)
            if all(finite[begin:end]):
                tokens[work] = found[begin:end]
            else:
                failed.append(work)
            begin = end
        return StepResult(step.plan.step, tokens, failed)

    def logits(self, token_ids: Sequence[int], start: int = 0) -> Tensor:
        """`[tokens - start, vocab]` fp32, of every position of one text from `start` on; for measuring.

        Overwrites the pool's first blocks: what they hold of positions before `start` is taken as it is.
        """
        blocks = list(range(1, 1 + blocks_for(len(token_ids), self._block_size)))
        assert not self._launched and len(blocks) < self.block_count, "steps under way, or a text larger than the pool"
        self.pool.begin_step()
        with torch.inference_mode():
            work = Work(0, start, list(token_ids[start:]), (blocks,))
            batch = build_batch(Plan(0, [work]), self._block_size, self.device, None)
            batch = replace(batch, logit_rows=torch.arange(len(work.token_ids), device=self.device))
            hidden = self._model.forward(batch, self._attention.begin(batch), self.pool.written)
            return self._model.logits(hidden).float()

    def _run(self, plan: Plan) -> Launched:
        self.pool.begin_step(None if self.on_layer is None else plan.works)  # without it nobody reads
        sampled = tuple(index for index, work in enumerate(plan.works) if work.sampling is not None)
        logits = self._logits(plan)
        draws = [Draw(w.sampling, w.samples, w.output_index) for w in plan.works if w.sampling is not None]
        if not draws:
            self._before = Sampled(torch.empty(0, dtype=torch.int64, device=self.device), [])
            return Launched(plan, (), torch.empty((2, 0), dtype=torch.int64), self._event())
        tokens, finite = self._backend.sampler.sample(logits, draws)
        self._before = Sampled(tokens, [plan.works[work] for work in sampled])
        answer = self._to_host(torch.stack((tokens, finite.long())))
        return Launched(plan, sampled, answer, self._event())

    def _logits(self, plan: Plan) -> Tensor:
        """`[sampled works, vocab]` of a step, whose KV is stored."""
        if self._graphs is not None and self.on_layer is None and self._graphs.serves(plan):
            logits = self._graphs.run(plan.works, self._before)
            self.pool.all_written()
            return logits
        batch = build_batch(plan, self._block_size, self.device, self._before, self._tables)
        self.pool.enter(batch.fresh_blocks)
        hidden = self._model.forward(batch, self._attention.begin(batch), lambda layer: self._stored(plan, layer))
        return self._model.logits(hidden) if len(hidden) else hidden

    def _stored(self, plan: Plan, layer: int) -> None:
        self.pool.written(layer)
        if self.on_layer is not None:
            self.on_layer(plan, 0, layer)

    def _to_host(self, answer: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return answer
        pinned = torch.empty(answer.shape, dtype=answer.dtype, pin_memory=True)
        return pinned.copy_(answer, non_blocking=True)

    def _event(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        cuda: Any = torch.cuda
        event: torch.cuda.Event = cuda.Event()
        event.record()
        return event

    def _load(self, checkpoint: Checkpoint, progress: Progress) -> Model:
        config = self.model_config
        with torch.inference_mode():
            make = LinearFactory(checkpoint, self.device, self.dtype, self._backend.native, self.quantization)
            model = Model(config, make, self._backend.layers, progress)
        checkpoint.refuse_unused(".rotary_emb.inv_freq", *(("lm_head.weight",) if config.tied_head else ()))
        return model

    def _make_tier(self, config: EngineConfig, blocks: int) -> HostTier | None:
        on_host = blocks * self.spec.block_bytes() if self.device.type != "cuda" else 0
        slots = host_slots(config, self.spec, on_host)
        return HostTier(slots, self.spec, self.device, config.host_kv_directory) if slots else None

    def _use_pool(self, blocks: int, tier: HostTier | None = None) -> None:
        parts = (tier, self._backend.mover, self._backend.wire)
        self.pool = KVPool(self.model_config, self.spec, blocks, self.device, self.dtype, *parts)
        self.block_count = blocks
        self._attention = self._backend.attention(self.pool.layers, self.model_config.windows)

    def _shorten(self) -> None:
        """A model may take longer texts than this machine has room for; it then serves what fits."""
        own = self.model_config.max_model_len
        longest = longest_that_fits(self.spec, self.block_count, own)
        if longest < own:
            LOG.warning("texts of up to %d tokens fit, the model takes %d; --kv-memory makes room", longest, own)
            self.model_config = structs.replace(self.model_config, max_model_len=longest)

    def _blocks(self, config: EngineConfig) -> int:
        limit = self.model_config.max_model_len
        if self.device.type != "cuda":
            refuse_more_than("kv_memory", config.kv_memory, available_memory(), "free beside the weights")
            return pool_blocks(config, self.spec, cpu_spare(), limit)
        whole = cuda_spare(self.device, 1.0)
        refuse_more_than("kv_memory", config.kv_memory, whole, f"free on {self.device} beside weights and steps")
        return pool_blocks(config, self.spec, cuda_spare(self.device, config.gpu_memory_utilization), limit)

    def _profile(self, config: EngineConfig) -> float:
        """Prompt tokens per second, of steps on small pools that are dropped.

        On CUDA the largest steps run, because what those take is not there for KV. A CPU is asked for no more than it
        does in about a second.
        """
        limit = self.model_config.max_model_len
        try:
            if self.device.type == "cuda":
                # Logits and noise of every row may take more than the longest prompt. No request should wait for the
                # kernels that short prompts, unfiltered samples and moved blocks have of their own.
                self._timed(widest_step(config), FILTERED)
                self._timed([first_step(config, limit)])
                self._warm_up()
                lengths = largest_step(config, limit)
                return sum(lengths) / self._timed(lengths, FILTERED)
            length = first_step(config, limit)
            rate = length / self._timed([length])
            longer = longer_step(config, limit, rate)
            return longer / self._timed([longer]) if longer > length else rate
        except DeviceMemoryError:
            why = f"a step of so many tokens does not fit into the memory of {self.device} beside the weights"
            raise ConfigError("max_batch_tokens", config.max_batch_tokens, why) from None

    def _warm_up(self) -> None:
        """Kernels that steps of empty pools do not need."""
        self._use_pool(3)
        with torch.inference_mode(), device_errors():
            self._backend.warm_up(self.model_config, self._attention)
        self.move([BlockMove("copy", 0, 1, 2)])
        self.pool.write(0, 0, [2], self.pool.read(0, 0, [1]))
        codecs: tuple[Codec, ...] = get_args(Codec)
        for codec in codecs:
            form = WireForm(self.spec.dtype, self._block_size, codec)
            self.pool.convert(Piece(form, 0, 0, [2], 0, 0), self.pool.read(0, 0, [1], codec))

    def _timed(self, lengths: list[int], sampling: Sampling = PLAIN) -> float:
        """Seconds of a step of prompts, which leaves nothing behind."""
        plan, blocks = prompts(lengths, self._block_size, sampling)
        self._use_pool(blocks)

        def step() -> None:
            self.launch(plan)
            self.collect()

        seconds = fastest(step)
        del self.pool, self._attention
        self._before = None
        return seconds

    def _host_rate(self) -> float:
        """Bytes per second between pool and host tier, both still empty: blocks go out and come back."""
        if self._tier is None:
            return 0.0
        moves = out_and_in(self.block_count, self._tier.slots, self.spec.block_bytes())

        def there_and_back() -> None:
            self.move(moves)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

        return len(moves) * self.spec.block_bytes() / fastest(there_and_back)

    def _memory(self) -> Memory:
        tokens, longest = self._block_size, self.model_config.max_model_len
        return Memory(
            weights_bytes=self._model.weights_bytes(),
            kv_pool_bytes=self.block_count * self.spec.block_bytes(),
            host_tier_bytes=self._tier.bytes if self._tier is not None else 0,
            token_bytes=self.spec.token_bytes(),
            tokens=(self.block_count - 1) * tokens,
            sequences=(self.block_count - 1) // blocks_for(longest, tokens),
            prompt_tokens_per_second=self.rates.prompt_tokens_per_second,
            host_bytes_per_second=self.rates.host_bytes_per_second,
        )

    def _log(self) -> None:
        memory, longest = self.memory, self.model_config.max_model_len
        tier = "no host tier"
        if memory.host_tier_bytes:
            speed = format_bytes(memory.host_bytes_per_second)
            tier = f"host tier {format_bytes(memory.host_tier_bytes)} ({self.host_slots} blocks) at {speed}/s"
        LOG.info(
            "%s on %s in %s%s, %s operators: weights %s, KV pool %s (%d blocks of %d tokens, %s per token)"
            " for %d tokens or %d sequences of %d, %s; %.0f prompt tokens/s",
            *(self.model_config.name, self.device, dtype_name(self.dtype)),
            *(", int8 weights" if self.quantization == "int8" else "", self.operators),
            *(format_bytes(memory.weights_bytes), format_bytes(memory.kv_pool_bytes), self.block_count),
            *(self._block_size, format_bytes(memory.token_bytes)),
            *(memory.tokens, memory.sequences, longest, tier, memory.prompt_tokens_per_second),
        )
