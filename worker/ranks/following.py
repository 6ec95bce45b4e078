"""Runs the plans of rank 0 on another rank: the same products over this rank's part, without drawing tokens."""

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from contracts.errors import AdapterError
from engine.adapters.slots import AdapterSlots
from engine.device import device_errors
from engine.executor import Executor
from engine.model.batch import Sampled
from engine.model.formats.registry import open_checkpoint
from engine.parallel.distributed import MeetingFile
from engine.parallel.rank_group import RankGroup
from engine.plan import StepPlan
from engine.speculation.verify.verification import works_by_row
from engine.start.device_memory import device_memory
from engine.start.load_model import load_model
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
    Order,
    PoolHandles,
    ReadAdapter,
    RecordSteps,
    Spare,
    TellSpare,
    send,
)


class RankExecutor(Executor):
    """An executor whose tokens are drawn by rank 0."""

    def follow(self, plan: StepPlan, recorded: bool) -> None:
        """Runs a step and keeps the tokens that rank 0 has drawn. Raises `DeviceError`, and `RankError` among them."""
        with torch.inference_mode(), device_errors():
            self.engine.pool.begin_step(plan.works, is_read=False)
            self._logits(plan, self._before, recorded)
            works = works_by_row([work for work in plan.works if work.sampling is not None])
            count = sum(len(work.samples) for work in works)
            tokens = torch.empty(count, dtype=torch.int64, device=self._device)
            self._before = Sampled(self.engine.group.collective.broadcast(tokens) if works else tokens, works)


def follow(begin: LoadShard, orders: Iterator[tuple[Order, list[int]]], stream: socket.socket) -> None:
    """Loads a shard and carries out `orders` until they end. Raises `BatonError` if one fails."""

    def silent(stage: str, percent: float) -> None:
        """Rank 0 reports the progress of all."""

    if isinstance(begin.way, MeetingFile):
        stream.sendall(JOINING)
    with closing(join(begin.shard, begin.way)) as collective:
        group = RankGroup(begin.shard, collective)
        loaded = load_model(begin.config, silent, open_checkpoint, group)
        stream.sendall(LOADED)
        executor: RankExecutor | None = None
        for order, descriptors in orders:
            match order:
                case MakePool(counts):
                    executor = None  # its pool goes before there is another
                    executor = RankExecutor(loaded.with_pool(counts, descriptors=descriptors))
                    if loaded.backend.device.type == "cuda":
                        send(stream, PoolHandles(executor.engine.pool.handles()))
                case TellSpare():
                    memory = device_memory(loaded.backend.device)
                    send(stream, Spare(memory.spare(begin.config.gpu_memory_utilization)))
                case RecordSteps(longest):
                    assert executor is not None
                    engine = executor.engine
                    steps = record_decode_steps(begin.config, loaded, engine.pool, longest, silent, ())
                    executor = RankExecutor(replace(engine, decode_steps=steps))
                case Move(moves):
                    assert executor is not None
                    executor.move(moves)
                case Launch(plan, recorded):
                    assert executor is not None
                    executor.follow(plan, recorded)
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
