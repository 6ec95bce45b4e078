"""Workers that share a GPU: each is charged with what it uses itself, and gets no more than what is free."""

from dataclasses import dataclass, field

import pytest
import torch

from contracts.errors import ConfigError
from engine.kv.spec import make_spec
from engine.start.block_counts import PoolLoad, bytes_of_counts
from engine.start.sizing import blocks_that_fit, refuse_large_weights
from infra.config.engine import EngineConfig
from tests.engine.kv.test_pool import CONFIG

GIB = 1 << 30
GPU = torch.device("cuda", 0)
SPEC = make_spec(CONFIG, torch.float16, 16, "w")
UNBOUNDED_TOKENS = 1 << 40  # so that no number of sequences bounds a pool


@dataclass
class Process:
    """A process on the GPU: what PyTorch's tensors hold, have held at most, and the rest that it holds."""

    held: int = 0
    peak: int = 0
    beside: int = GIB // 2
    cached: int = 0

    def all(self) -> int:
        return self.held + self.cached + self.beside


@dataclass
class FakeGPU:
    """Answers PyTorch's questions about memory, for whichever process is the one that asks."""

    monkeypatch: pytest.MonkeyPatch
    total: int = 80 * GIB
    processes: list[Process] = field(default_factory=list)

    def start(self, weights: int, steps: int, beside: int = GIB // 2) -> Process:
        """A worker that has loaded its weights and run its largest step."""
        self.processes.append(Process(weights, weights + steps, beside, cached=steps))
        return self.processes[-1]

    def free(self) -> int:
        return self.total - sum(each.all() for each in self.processes)

    def size_pool(self, process: Process, utilization: float, kv_memory: int = 0) -> int:
        """Sizes the worker's pool and takes its memory; returns the bytes."""
        with self.monkeypatch.context() as patched:
            patched.setattr("torch.cuda.memory_allocated", lambda device: process.held)
            patched.setattr("torch.cuda.max_memory_allocated", lambda device: process.peak)
            patched.setattr("torch.cuda.memory_reserved", lambda device: process.held + process.cached)
            patched.setattr("torch.cuda.empty_cache", lambda: setattr(process, "cached", 0))
            patched.setattr("torch.cuda.mem_get_info", lambda device: (self.free(), self.total))
            config = EngineConfig(model="m", gpu_memory_utilization=utilization, kv_memory=kv_memory)
            size = bytes_of_counts(SPEC, blocks_that_fit(config, SPEC, GPU, PoolLoad(UNBOUNDED_TOKENS, in_flight=1024)))
        process.held += size
        process.peak = max(process.peak, process.held)
        return size


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    return FakeGPU(monkeypatch)


PREFILL = (15 * GIB, 4 * GIB)
DECODE = (15 * GIB, 1 * GIB)


def alone(monkeypatch: pytest.MonkeyPatch, needs: tuple[int, int]) -> int:
    own = FakeGPU(monkeypatch)
    return own.size_pool(own.start(*needs), 0.45)


@pytest.mark.parametrize("order", [(PREFILL, DECODE), (DECODE, PREFILL)], ids=["prefill first", "decode first"])
@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "both loaded, then sized"])
def test_two_workers_on_one_gpu_have_the_pools_that_each_would_have_alone(
    order: tuple[tuple[int, int], ...], together: bool, gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    if together:
        sizes = [gpu.size_pool(process, 0.45) for process in [gpu.start(*needs) for needs in order]]
    else:
        sizes = [gpu.size_pool(gpu.start(*needs), 0.45) for needs in order]
    assert sizes == [alone(monkeypatch, needs) for needs in order]
    assert min(sizes) > 16 * GIB and gpu.free() > sum(steps for _, steps in order)


def test_a_worker_that_starts_again_beside_another_has_the_same_pool(gpu: FakeGPU) -> None:
    first = gpu.start(*PREFILL)
    size = gpu.size_pool(first, 0.45)
    gpu.size_pool(gpu.start(*DECODE), 0.45)
    gpu.processes.remove(first)
    assert gpu.size_pool(gpu.start(*PREFILL), 0.45) == size


def test_what_strangers_hold_bounds_a_pool_by_what_is_free(gpu: FakeGPU) -> None:
    gpu.start(50 * GIB, 0)
    size = gpu.size_pool(gpu.start(*PREFILL), 0.9)
    assert size > 6 * GIB and gpu.free() > PREFILL[1], "its steps still fit"


def test_a_share_without_room_for_blocks_is_refused_with_all_figures(gpu: FakeGPU) -> None:
    sentence = (
        r"^--gpu-memory-utilization: 0\.2: 16\.0GiB of cuda:0, where weights and steps take 19\.5GiB and 64\.5GiB are"
        r" free: no room for KV blocks; raise it, or put fewer workers on this GPU$"
    )
    with pytest.raises(ConfigError, match=sentence):
        gpu.size_pool(gpu.start(*PREFILL), 0.2)
    gpu.start(60 * GIB, 0)
    with pytest.raises(ConfigError, match=r"^--gpu-memory-utilization: 0\.45: .* 4\.0GiB are free: no room"):
        gpu.size_pool(gpu.processes[0], 0.45)


def test_memory_that_was_asked_for_is_bound_by_what_is_free_only(gpu: FakeGPU) -> None:
    assert 50 * GIB - SPEC.block_bytes() < gpu.size_pool(gpu.start(*PREFILL), 0.2, kv_memory=50 * GIB) <= 50 * GIB
    with pytest.raises(ConfigError, match=r"^--kv-memory: '1\.0GiB': only 0B are free on cuda:0 beside weights and"):
        gpu.size_pool(gpu.start(10 * GIB, 3 * GIB), 0.2, kv_memory=GIB)


def test_weights_are_compared_with_what_is_free(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 0)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda device: 0)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (8 * GIB, 80 * GIB))
    with pytest.raises(ConfigError, match=r"^--model: 'm': its weights take 16\.0GiB in bf16, and only 8\.0GiB"):
        refuse_large_weights(EngineConfig(model="m"), {None: 8 * GIB}, torch.bfloat16, GPU)
    refuse_large_weights(EngineConfig(model="m"), {None: 3 * GIB}, torch.bfloat16, GPU)
