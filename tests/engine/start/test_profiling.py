"""A start runs the steps that take the most memory: also a chunk behind a prefix."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec import structs

from contracts.kinds import BlockSize
from engine.backends.triton.backend import TritonBackend
from engine.engine import Engine
from engine.kv.pool import KVPool
from engine.plan import Work
from engine.start.profiling import chunk, largest_chunk, prompt_steps
from infra.config.engine import EngineConfig
from tests.engine.backends.test_compiled_at_start import first_tokens
from tests.engine.simulated_device import CUDA
from tests.engine.simulated_torch import simulated_device
from tests.engine.specializations import specializations
from tests.engine.test_golden import make_engine
from tests.reference import build_model
from tests.variants import VARIANTS

BLOCK_TOKENS: BlockSize = 8
MAX_PROMPT_TOKENS = 100


class LoggedPool(KVPool):
    """Notes the works of all steps."""

    works: ClassVar[list[Work]] = []

    def begin_step(self, works: Sequence[Work] | None = None, *, is_read: bool = True) -> None:
        self.works.extend(works or ())
        super().begin_step(works, is_read=is_read)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("profiled") / "llama", VARIANTS["llama"]())


def config_of(tokens: int) -> EngineConfig:
    return EngineConfig(model="m", block_size=BLOCK_TOKENS, max_sequences=4, max_batch_tokens=tokens)


@pytest.mark.parametrize(("budget", "longest", "found"), [(30, 100, (70, 30)), (100, 100, (8, 92)), (9, 8, (0, 8))])
def test_the_largest_chunk_ends_the_longest_prompt(budget: int, longest: int, found: tuple[int, int]) -> None:
    assert largest_chunk(config_of(budget), longest) == found


def test_a_chunk_behind_a_long_prefix_takes_few_blocks() -> None:
    plan, blocks = chunk(70, 30, BLOCK_TOKENS, 2)
    (work,) = plan.works
    assert (work.start, len(work.token_ids)) == (70, 30)
    assert work.blocks == ([1] * 8 + [2, 3, 4, 5, 6],) * 2 and blocks == 7


@pytest.mark.interpreted
def test_a_start_on_a_gpu_runs_a_chunk_behind_a_prefix(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.backends.triton.sampling.sampler.sample", first_tokens)
    loaded = make_engine(model, cpu_backend="triton", decode_graphs="off", block_size=BLOCK_TOKENS, max_batch_tokens=8)
    with simulated_device(), specializations(run=False):
        backend = TritonBackend(CUDA, loaded.backend.dtype)
        model_config = structs.replace(loaded.model_config, max_model_len=MAX_PROMPT_TOKENS)

        def make(counts: Sequence[int]) -> Engine:
            pool = LoggedPool(loaded.pool.spec, counts, CUDA, backend.mover, backend.codec)
            attention = backend.attention(model_config, pool.layers)
            return Engine(backend, loaded.model, model_config, pool, attention, backend.launch_depth, None, None)

        LoggedPool.works.clear()
        prompt_steps(config_of(30), MAX_PROMPT_TOKENS, CUDA, 1, make)
    assert {(work.start, len(work.token_ids)) for work in LoggedPool.works} >= {(0, 1), (0, 30), (70, 30)}
