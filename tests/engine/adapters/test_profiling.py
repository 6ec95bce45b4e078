"""A start runs its largest chunk with an adapter, where adapters are on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.adapters.slots import AdapterSlots
from engine.engine import Engine
from engine.executor import Executor
from engine.plan import StepPlan, Work
from engine.start.profiling import PLAIN_SAMPLING, run_largest_chunk
from tests.engine.adapters.test_golden import adapted_engine
from tests.engine.start.test_profiling import BLOCK_TOKENS, MAX_PROMPT_TOKENS, LoggedPool, config_of
from tests.reference import build_model
from tests.variants import VARIANTS


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_where_adapters_are_on_the_chunk_has_a_blank_adapter(backend: str, tmp_path: Path) -> None:
    model = build_model(tmp_path / "llama", VARIANTS["llama"]())
    engine = adapted_engine(model, cpu_backend=backend, max_loras=1, max_lora_rank=8, block_size=BLOCK_TOKENS)
    adapters = engine.adapters
    assert isinstance(adapters, AdapterSlots)

    def make(counts: Sequence[int]) -> Engine:
        parts = engine.backend.mover, engine.backend.codec
        pool = LoggedPool(engine.pool.spec, counts, torch.device("cpu"), *parts)
        return replace(engine, pool=pool, attention=engine.backend.attention(engine.model_config, pool.layers))

    LoggedPool.works.clear()
    run_largest_chunk(config_of(30), MAX_PROMPT_TOKENS, 1, make)
    (work,) = LoggedPool.works
    assert (work.start, len(work.token_ids)) == (70, 30) and work.adapter
    with pytest.raises(KeyError):
        adapters.slots_of([work])  # it is gone
    answers = []
    for digest in ("", work.adapter):
        with adapters.blank():
            executor = Executor(make([8]))
            works = [Work(0, 0, list(range(20)), ([1, 2, 3],), PLAIN_SAMPLING, adapter=digest)]
            executor.launch(StepPlan(0, works))
            answers.append(executor.collect().tokens)
    assert answers[0] == answers[1]
