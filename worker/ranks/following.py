"""Runs the plans of rank 0 on another rank: the same products over this rank's part, without drawing tokens."""

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from contracts.errors import AdapterError
from engine.adapters.slots import AdapterSlots
from engine.backends.base import DecodeSteps
from engine.device import device_errors
from engine.engine import Engine
from engine.executor import Executor
from engine.model.batch import Sampled
from engine.model.open_checkpoint import open_checkpoint
from engine.parallel.distributed import MeetingFile
from engine.parallel.rank_group import RankGroup
from engine.plan import StepPlan, StepResult
from engine.speculation.proposers.model_proposer import ModelProposer
from engine.speculation.verify.verification import works_by_row
from engine.start.device_memory import device_memory
from engine.start.load import make_tier
from engine.start.load_model import load_model
from engine.start.proposers.load_proposer import load_proposer
from engine.start.recording import record_decode_steps
from worker.ranks.joining import join
from worker.ranks.orders import (
    JOINING,
    LOADED,
    AdapterAnswer,
    FreeAdapter,
    Launch,
    LoadShard,
    MakePool,
    Move,
    MoveTokens,
    Order,
    PoolHandles,
    Propose,
    ReadAdapter,
    RecordSteps,
    Spare,
    TellSpare,
    send,
)

MAX_STEPS_KEPT = 4
"""Steps behind which rank 0 may still propose: more than it launches before it collects one."""


class RankExecutor(Executor):
    """An executor whose tokens are drawn by rank 0."""

    def __init__(self, engine: Engine, proposer: ModelProposer | None) -> None:
        super().__init__(engine, proposer=proposer)
        self._followed: deque[tuple[StepPlan, Tensor]] = deque(maxlen=MAX_STEPS_KEPT)

    def with_steps(self, steps: DecodeSteps | None) -> "RankExecutor":
        return RankExecutor(replace(self.engine, decode_steps=steps), self._proposer)

    def follow(self, plan: StepPlan, recorded: bool) -> None:
        """Runs a step and keeps the tokens that rank 0 has drawn. Raises `DeviceError`, and `RankError` among them."""
        with torch.inference_mode(), device_errors():
            self.engine.pool.begin_step(plan.works, is_read=False)
            hidden, _, _ = self._logits(plan, self._before, recorded)
            if self._proposer is not None:
                self._followed.append((plan, hidden))
            works = works_by_row([work for work in plan.works if work.sampling is not None])
            count = sum(len(work.samples) for work in works)
            tokens = torch.empty(count, dtype=torch.int64, device=self._device)
            self._before = Sampled(self.engine.group.collective.broadcast(tokens) if works else tokens, works)

    def propose(self, result: StepResult) -> None:
        """Proposes as rank 0 does, which needs this rank's part of layers and logits. Raises as `follow` does."""
        with torch.inference_mode(), device_errors():
            if self._proposer is not None:  # else the whole proposer is on rank 0
                plan, hidden = next(step for step in self._followed if step[0].step == result.step)
                self._proposer.propose(plan, result, hidden)
            self.engine.group.collective.barrier()


def follow(begin: LoadShard, orders: Iterator[tuple[Order, list[int]]], stream: socket.socket) -> None:
    """Loads a shard and carries out `orders` until they end. Raises `BatonError` if one fails."""

    def silent(stage: str, percent: float) -> None:
        """Reports nothing: rank 0 reports the progress of all ranks."""

    if isinstance(begin.way, MeetingFile):
        stream.sendall(JOINING)
    with closing(join(begin.shard, begin.way)) as collective:
        group = RankGroup(begin.shard, collective)
        config = begin.config
        loaded = load_model(config, silent, open_checkpoint, group)
        drafting = load_proposer(config, loaded, silent, open_checkpoint)
        stream.sendall(LOADED)
        executor: RankExecutor | None = None
        for order, descriptors in orders:
            match order:
                case MakePool(counts, slots):
                    executor = None  # frees its pool before the next one is made
                    made = loaded.with_pool(counts, make_tier(config, loaded, slots), descriptors=descriptors)
                    executor = RankExecutor(made, drafting.begin(made, tuple(counts), loaded.config, silent))
                    del made
                    if loaded.backend.device.type == "cuda":
                        send(stream, PoolHandles(executor.engine.pool.handles()))
                case TellSpare():
                    memory = device_memory(loaded.backend.device)
                    send(stream, Spare(memory.spare(config.gpu_memory_utilization)))
                case RecordSteps(longest):
                    assert executor is not None
                    pool = executor.engine.pool
                    executor = executor.with_steps(
                        record_decode_steps(config, loaded, pool, longest, silent, drafting.tree)
                    )
                case Move(moves):
                    assert executor is not None
                    executor.move(moves)
                case MoveTokens(places):
                    assert executor is not None
                    executor.move_tokens(places)
                case Launch(plan, recorded):
                    assert executor is not None
                    executor.follow(plan, recorded)
                case Propose(step, tokens, accepted):
                    assert executor is not None
                    executor.propose(StepResult(step, tokens, accepted=accepted))
                case ReadAdapter(directory):
                    send(stream, _load_adapter(loaded.adapters, Path(directory)))
                case FreeAdapter(digest):
                    assert loaded.adapters is not None
                    loaded.adapters.free(digest)
                case LoadShard():
                    raise AssertionError("a rank begins once")


def _load_adapter(slots: AdapterSlots | None, directory: Path) -> AdapterAnswer:
    assert slots is not None, "adapters are off"
    try:
        return AdapterAnswer(slots.load(directory))
    except AdapterError as error:
        return AdapterAnswer(problem=str(error))
