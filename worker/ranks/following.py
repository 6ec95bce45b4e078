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
from worker.ranks import orders
from worker.ranks.joining import join

Orders = Iterator[tuple[orders.Order, list[int]]]
"""Orders of rank 0, each with the file descriptors that came with it."""
MAX_STEPS_KEPT = 4
"""Steps after which rank 0 may still ask for proposals: more than it launches before it collects one."""


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
        """Runs this rank's part of the proposer, if it has one. Raises as `follow` does."""
        with torch.inference_mode(), device_errors():
            if self._proposer is not None:  # else the whole proposer is on rank 0
                plan, hidden = next(step for step in self._followed if step[0].step == result.step)
                self._proposer.propose(plan, result, hidden)
            self.engine.group.collective.barrier()


def follow(begin: orders.LoadShard, received: Orders, stream: socket.socket) -> None:
    """Loads a shard and carries out the orders of rank 0 until they end. Raises `BatonError` if one fails."""

    def silent(stage: str, percent: float) -> None:
        """Reports nothing: rank 0 reports the progress of all ranks."""

    if isinstance(begin.link, MeetingFile):
        stream.sendall(orders.JOINING)
    with closing(join(begin.shard, begin.link)) as collective:
        group = RankGroup(begin.shard, collective)
        config = begin.config
        loaded = load_model(config, silent, open_checkpoint, group)
        drafting = load_proposer(config, loaded, silent, open_checkpoint)
        stream.sendall(orders.LOADED)
        executor: RankExecutor | None = None
        for order, descriptors in received:
            match order:
                case orders.MakePool(counts, slots):
                    executor = None  # frees its pool before the next one is made
                    made = loaded.with_pool(counts, make_tier(config, loaded, slots), descriptors=descriptors)
                    executor = RankExecutor(made, drafting.begin(made, tuple(counts), loaded.config, silent))
                    del made
                    if loaded.backend.device.type == "cuda":
                        orders.send(stream, orders.PoolHandles(executor.engine.pool.handles()))
                case orders.ReportSpare():
                    memory = device_memory(loaded.backend.device)
                    orders.send(stream, orders.Spare(memory.spare(config.gpu_memory_utilization)))
                case orders.RecordSteps(longest):
                    assert executor is not None
                    pool = executor.engine.pool
                    steps = record_decode_steps(config, loaded, pool, longest, silent, drafting.tree)
                    executor = executor.with_steps(steps)
                case orders.ReadAdapter(directory):
                    orders.send(stream, _load_adapter(loaded.adapters, Path(directory)))
                case orders.FreeAdapter(digest):
                    assert loaded.adapters is not None
                    loaded.adapters.free(digest)
                case orders.LoadShard():
                    raise AssertionError("a rank loads one shard")
                case _:
                    assert executor is not None
                    _carry_out(executor, order)


def _carry_out(executor: RankExecutor, order: orders.StepOrder) -> None:
    match order:
        case orders.Move(moves):
            executor.move(moves)
        case orders.MoveTokens(moves):
            executor.move_tokens(moves)
        case orders.Launch(plan, recorded):
            executor.follow(plan, recorded)
        case orders.Propose(step, tokens, accepted):
            executor.propose(StepResult(step, tokens, accepted=accepted))


def _load_adapter(slots: AdapterSlots | None, directory: Path) -> orders.AdapterAnswer:
    assert slots is not None, "adapters are off"
    try:
        return orders.AdapterAnswer(slots.load(directory))
    except AdapterError as error:
        return orders.AdapterAnswer(problem=str(error))
