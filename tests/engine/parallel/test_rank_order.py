"""KV of two ranks on simulated GPUs: what rank 0 lands, reads and moves is in order with the steps of both."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from contracts.kv.spec import KVSpec
from engine.backends.triton.backend import TritonBackend
from engine.engine import Engine
from engine.executor import Executor
from engine.kv.pool import KVPool
from engine.kv.rank_pools import RankPools
from engine.model.open_checkpoint import open_checkpoint
from engine.parallel.peers import NoPeers
from engine.parallel.rank_group import RankGroup
from engine.parallel.shard import Shard
from engine.plan import BlockMove, StepPlan
from engine.start.load_model import load_model
from infra.config.engine import EngineConfig
from tests.engine.kv.peer_memory import shared_on_device
from tests.engine.parallel.lockstep import Lockstep, LockstepCollective
from tests.engine.simulated_device import CUDA, SimulatedDevice, SimulatedEvent
from tests.engine.simulated_torch import simulated_device
from tests.engine.test_stream_order import (
    BLOCKS,
    Worker,
    decode,
    landed_sequences_run,
    layers_leave_behind_their_step,
    prompt,
    what_was_given_up_is_used_by_another,
)
from tests.reference import build_model
from tests.variants import SIZES
from worker.ranks.following import RankExecutor

pytestmark = pytest.mark.interpreted


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(**{**SIZES, "num_hidden_layers": 2})
    return build_model(tmp_path_factory.mktemp("ranks") / "model", config)


class Follower(NoPeers):
    """Rank 1, to which rank 0's orders go."""

    def __init__(self, lockstep: Lockstep, executor: RankExecutor) -> None:
        self._lockstep = lockstep
        self._executor = executor

    def move(self, moves: Sequence[BlockMove]) -> None:
        self._lockstep.order(lambda: self._executor.move(moves))

    def launch(self, plan: StepPlan, recorded: bool) -> None:
        self._lockstep.order(lambda: self._executor.follow(plan, recorded))


class RankedWorker(Worker):
    """A worker of two ranks, as `Worker` is one of a single rank: its pool has the blocks of both."""

    def __init__(self, directory: Path, device: SimulatedDevice, lockstep: Lockstep, *, signals: bool) -> None:
        self.device = device
        self._step = 0
        self.groups = range(1)
        of_rank_1, whole = lockstep.as_rank_1(lambda: make_rank(directory, device, lockstep, 1))
        made = lockstep.as_rank_1(lambda: device.current.record_event())
        own, _ = make_rank(directory, device, lockstep, 0)
        memory: Any = (of_rank_1.pool.layers[0]._base, made)
        backend = own.backend
        opened = KVPool(own.pool.spec, [BLOCKS], CUDA, backend.mover, backend.codec, handles=[memory], own=own.pool)
        rank_pools = RankPools([own.pool, opened], whole)
        peers = Follower(lockstep, RankExecutor(of_rank_1, None))
        self.pool = rank_pools  # type: ignore[assignment]
        engine = replace(own, peers=peers, rank_pools=rank_pools)
        self.executor = Executor(engine, (lambda plan, group, layer: None) if signals else None)


def make_rank(directory: Path, device: SimulatedDevice, lockstep: Lockstep, rank: int) -> tuple[Engine, KVSpec]:
    """Returns a rank's engine, and the description of both ranks' blocks."""
    config = EngineConfig(
        model=str(directory), device="cpu", dtype="fp32", cpu_backend="triton", block_size=8, max_model_len=64
    )
    group = RankGroup(Shard(rank, 2), LockstepCollective(lockstep, rank))
    loaded = load_model(config, lambda stage, percent: None, open_checkpoint, group)
    backend = TritonBackend(CUDA, torch.float32)
    pool = KVPool(loaded.spec, [BLOCKS], CUDA, backend.mover, backend.codec)
    device.in_cells(pool.layers[0], loaded.spec.groups[0].block_bytes, f"rank {rank}'s pool")
    attention = backend.attention(loaded.config, pool.layers)
    assert loaded.whole_spec is not None
    return Engine(backend, loaded.model, loaded.config, pool, attention, 2, None, None, group=group), loaded.whole_spec


def moved_blocks_are_landed_and_read(worker: Worker) -> None:
    """What was copied away is written over at once, and what was copied is read at once, on both ranks."""
    worker.launch(prompt(1, [1, 2], 9))
    worker.executor.collect()
    worker.land([3])
    worker.copy(3, 6)
    worker.copy(2, 5)
    worker.land([2], "fp8")
    worker.read([5, 6])
    worker.launch(decode(1, [1, 5], 9), decode(2, [3, 2], 9))
    worker.executor.collect()


def blocks_leave_for_another_gpu(worker: Worker) -> None:
    """A step of both ranks is under way, and what it has filled is copied into the pool of a worker of one rank."""
    own = worker.pool
    backend = worker.executor.engine.backend
    other = KVPool(own.spec, [BLOCKS], CUDA, backend.mover, backend.codec)
    assert own.devices is not None and other.devices is not None
    worker.device.synchronize()  # the other worker grants blocks when its own GPU has filled its pool with zeros
    peer = own.devices.opened(other.devices.offered(), other.counts)
    worker.launch(prompt(1, [1, 2], 9))
    for layer in range(2):
        peer.write(0, layer, 0, [1, 2], [3, 4])
    worker.executor.collect()


SCENES: dict[str, tuple[Callable[[Worker], None], bool]] = {
    "a prefill worker": (layers_leave_behind_their_step, True),
    "a decode worker": (landed_sequences_run, False),
    "handoffs that end early": (what_was_given_up_is_used_by_another, False),
    "moves": (moved_blocks_are_landed_and_read, True),
    "from GPU to GPU": (blocks_leave_for_another_gpu, True),
}


def opened_on(device: SimulatedDevice) -> Callable[..., torch.Tensor]:
    """Opens the memory of rank 1 on rank 0's stream, which waits for the owner's, as PyTorch has it wait."""

    def opened(handle: tuple[torch.Tensor, SimulatedEvent], *_: object) -> torch.Tensor:
        tensor, event = handle
        device.current.wait_event(event)
        return tensor

    return opened


def races(directory: Path, name: str, forgotten: tuple[str, str] = ("", ""), unordered: str = "") -> list[str]:
    """What nothing puts in order in a scene, where a function leaves out a wait, or an operation of all ranks."""
    scene, signals = SCENES[name]
    with pytest.MonkeyPatch.context() as patch, simulated_device() as device, shared_on_device():
        patch.setattr("engine.kv.pool.opened", opened_on(device))
        device.forgotten = forgotten
        lockstep = Lockstep(device, unordered)
        try:
            scene(RankedWorker(directory, device, lockstep, signals=signals))
        finally:
            lockstep.close()
    return device.races


@pytest.mark.parametrize("name", SCENES)
def test_nothing_races(name: str, directory: Path) -> None:
    assert races(directory, name) == []


@pytest.mark.parametrize(
    ("name", "kind", "function"),
    [
        ("a prefill worker", "wait_event", "begin_read"),
        ("a decode worker", "wait_event", "begin_step"),
        ("handoffs that end early", "wait_event", "begin_moves"),
        ("moves", "wait_event", "_wait_for_moves"),
        ("from GPU to GPU", "wait_event", "digested_read"),
    ],
)
def test_a_wait_that_is_left_out_shows_on_both_ranks(name: str, kind: str, function: str, directory: Path) -> None:
    found = races(directory, name, (kind, function))
    assert all(any(f"rank {rank}'s pool" in race for race in found) for rank in range(2)), found


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("a prefill worker", "sum"),
        ("a decode worker", "sum"),
        ("moves", "meet"),
        ("handoffs that end early", "meet"),
        ("from GPU to GPU", "sum"),
    ],
)
def test_what_orders_the_ranks_shows_where_it_is_left_out(name: str, operation: str, directory: Path) -> None:
    """Rank 0's own pool is in order without it."""
    found = races(directory, name, unordered=operation)
    assert found and all("rank 1's pool" in race for race in found), found
