"""Runs plans on one device: plan → batch → forward → sample, launched now and collected later."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from core.config import EngineConfig
from core.kvspec import KVSpec
from core.messages import Sampling
from core.status import Progress
from engine.architectures import ModelConfig, computation, read_config
from engine.attention import AttentionBackend
from engine.attention_torch import TorchAttention
from engine.batch import Sampled, build_batch, single_rows
from engine.device import choose_device, choose_dtype, dtype_name
from engine.host_tier import HostTier
from engine.hub import locate
from engine.kv_pool import KVPool, make_spec
from engine.linear import LinearFactory
from engine.model import Model
from engine.plan import BlockMove, Plan, StepResult, Work
from engine.pool_size import cpu_spare, cuda_spare, longest_that_fits, pool_blocks, profiled_blocks, profiled_tokens
from engine.rope import Rotary
from engine.sampler import Draw, sample
from engine.weights import Checkpoint

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

    def __init__(self, config: EngineConfig, progress: Progress, on_layer: OnLayer | None = None) -> None:
        """Loads the model and makes the pool, reporting stages and percent.

        `on_layer(plan, group, layer)` is called on this thread when that layer's KV of a step has been stored (on CUDA:
        enqueued, and ordered before what `KVPool.read` copies), before its attention is computed.
        Raises `ModelError` for a model that is missing, broken or not supported, `ConfigError` for settings that
        do not fit it or this machine.
        """
        self.device = choose_device(config.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # events are recorded on the stream of this thread's device
        self.dtype = choose_dtype(config.dtype, self.device)
        directory = locate(config.model, progress)
        progress("reading the config", 0.0)
        self.model_config: ModelConfig = read_config(directory, config.max_model_len)
        checkpoint = Checkpoint(directory)
        self.parameters = checkpoint.parameters()
        self._model = self._load(checkpoint, progress)
        progress("hashing weights", 0.0)
        digest = checkpoint.digest(computation(self.model_config))
        self.spec: KVSpec = make_spec(self.model_config, self.dtype, config.block_size, digest)
        self._block_size = config.block_size
        self.on_layer: OnLayer | None = None
        self._launched: deque[Launched] = deque()
        self._before: Sampled | None = None
        progress("making the KV pool", 0.0)
        blocks = self._blocks(config)
        self._tier = self._make_tier(config)
        self._use_pool(blocks, self._tier)
        self._shorten()
        self.on_layer = on_layer
        LOG.info(
            "%s on %s in %s: torch attention, %d KV blocks of %d tokens (%.0f MiB)",
            *(self.model_config.name, self.device, dtype_name(self.dtype), self.block_count, config.block_size),
            self.block_count * self.spec.block_bytes() / (1 << 20),
        )

    @property
    def host_slots(self) -> int:
        """Blocks that the host tier holds; 0: there is none."""
        return self._tier.slots if self._tier is not None else 0

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Carries moves out in order, after all that was launched and before all that is launched or lands later."""
        with torch.inference_mode():
            self.pool.move(moves)

    def launch(self, plan: Plan) -> None:
        """Starts a step. On a CPU it is over on return; on CUDA it runs on. At most `IN_FLIGHT` may be uncollected."""
        assert len(self._launched) < IN_FLIGHT, "collect before launching a third step"
        with torch.inference_mode():
            self._launched.append(self._run(plan))

    def collect(self) -> StepResult:
        """The result of the oldest launched step; waits for it."""
        step = self._launched.popleft()
        if step.done is not None:
            step.done.synchronize()
        found, finite = step.answer.tolist()
        tokens: list[list[int]] = [[] for _ in step.plan.works]
        failed = []
        drawn = iter(zip(found, finite, strict=True))
        for work in step.sampled_works:
            own = list(islice(drawn, len(step.plan.works[work].samples)))
            if all(good for _, good in own):
                tokens[work] = [token for token, _ in own]
            else:
                failed.append(work)
        return StepResult(step.plan.step, tokens, failed)

    def _run(self, plan: Plan) -> Launched:
        self.pool.begin_step()
        batch = build_batch(plan, self._block_size, self.device, self._before)
        hidden = self._model.forward(
            batch.token_ids, batch.positions, self._attention.begin(batch), lambda layer: self._stored(plan, layer)
        )
        draws = [Draw(w.sampling, w.samples, w.output_index) for w in plan.works if w.sampling is not None]
        if not draws:
            self._before = Sampled(batch.logit_rows, {})
            return Launched(plan, (), torch.empty((2, 0), dtype=torch.int64), self._event())
        tokens, finite = sample(self._model.logits(hidden[batch.logit_rows]), draws)
        self._before = Sampled(tokens, single_rows(plan, batch.sampled_works))
        answer = self._to_host(torch.stack((tokens, finite.long())))
        return Launched(plan, batch.sampled_works, answer, self._event())

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
            rotary = Rotary(config.rope, config.head_dim, self.device, self.dtype)
            model = Model(config, LinearFactory(checkpoint, self.device, self.dtype), rotary, progress)
        checkpoint.refuse_unused(".rotary_emb.inv_freq", *(("lm_head.weight",) if config.tied_head else ()))
        return model

    def _make_tier(self, config: EngineConfig) -> HostTier | None:
        slots = config.host_kv_memory // self.spec.block_bytes()
        return HostTier(slots, self.spec, self.device, config.host_kv_directory) if slots else None

    def _use_pool(self, blocks: int, tier: HostTier | None = None) -> None:
        self.pool = KVPool(self.model_config, self.spec, blocks, self.device, self.dtype, tier)
        self.block_count = blocks
        self._attention: AttentionBackend = TorchAttention(self.pool.layers, self.model_config.windows)

    def _shorten(self) -> None:
        """A model may take longer texts than this machine has room for; it then serves what fits."""
        own = self.model_config.max_model_len
        longest = longest_that_fits(self.spec, self.block_count, own)
        if longest < own:
            LOG.warning("texts of up to %d tokens fit, the model takes %d; --kv-memory makes room", longest, own)
            self.model_config = structs.replace(self.model_config, max_model_len=longest)

    def _blocks(self, config: EngineConfig) -> int:
        limit = self.model_config.max_model_len
        if config.kv_memory:
            return pool_blocks(config, self.spec, 0, limit)
        if self.device.type != "cuda":
            return pool_blocks(config, self.spec, cpu_spare(), limit)
        self._profile(profiled_tokens(config, limit))
        return pool_blocks(config, self.spec, cuda_spare(self.device, config.gpu_memory_utilization), limit)

    def _profile(self, lengths: list[int]) -> None:
        """Runs the largest step once on a small pool, which is dropped: what it takes is not there for KV."""
        self._use_pool(profiled_blocks(lengths, self._block_size))
        works, first = [], 1
        for sequence, length in enumerate(lengths):
            end = first + -(-length // self._block_size)
            works.append(Work(sequence, 0, [0] * length, (list(range(first, end)),), Sampling(seed=0)))
            first = end
        self.launch(Plan(0, works))
        self.collect()
        del self.pool, self._attention
        self._before = None
