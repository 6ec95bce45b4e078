"""Every rank holds its part of an adapter: answers are PEFT's; all ranks load an adapter, or none."""

from pathlib import Path

import pytest

from contracts.errors import AdapterError
from engine.executor import Executor
from tests.adapter_reference import adapted_by, build_adapter
from tests.engine.drive import run, start
from tests.reference import build_model, golden, make_prompts
from tests.variants import VARIANTS
from tests.worker.ranks.follower_threads import engine_of_ranks
from worker.ranks.adapters import RankAdapters

LENGTHS = [1, 16, 33]
NEW_TOKENS = 8


@pytest.mark.parametrize(
    ("variant", "ranks", "backend"),
    [("llama", 4, "native"), ("llama", 2, "torch"), ("glm4", 2, "native"), ("phi3", 2, "torch")],
)
def test_adapters_give_pefts_tokens(variant: str, ranks: int, backend: str, tmp_path: Path) -> None:
    """Two adapters and the model in the same steps; a slot that was freed is used again."""
    model = build_model(tmp_path / "model", VARIANTS[variant]())
    prompts = make_prompts(LENGTHS, 320)
    directories = [
        build_adapter(tmp_path / f"{rank}", model, seed=rank, r=rank, target_modules="all-linear") for rank in (3, 8, 5)
    ]
    expected = [golden(model, prompts, NEW_TOKENS, load=adapted_by(each)) for each in directories]
    of_model = golden(model, prompts, NEW_TOKENS)
    with engine_of_ranks(model, ranks, cpu_backend=backend, allow_lora_loading=True, max_loras=2) as (engine, others):
        assert engine.adapters is not None
        shelf = RankAdapters(engine.adapters, others)
        digests = [shelf.load(each) for each in directories[:2]]
        executor = Executor(engine)

        def answered() -> list[list[int]]:
            own = [digest for digest in ["", *digests] for _ in prompts]
            running = start(executor, prompts * 3, NEW_TOKENS, adapters=own, stagger=1)
            return run(executor, running, NEW_TOKENS, chunk=13)

        assert answered() == [each.tokens for runs in (of_model, *expected[:2]) for each in runs]
        with pytest.raises(AdapterError, match="2 adapters are loaded already"):
            shelf.load(directories[2])
        shelf.free(digests[0])
        digests[0] = shelf.load(directories[2])
        assert answered() == [each.tokens for runs in (of_model, expected[2], expected[1]) for each in runs]


def test_what_one_rank_cannot_load_no_rank_keeps(tmp_path: Path) -> None:
    """The only slot is free again after a load that failed on rank 0 alone."""
    model = build_model(tmp_path / "model", VARIANTS["llama"]())
    adapter = build_adapter(tmp_path / "adapter", model, r=3)

    class Broken:
        def load(self, directory: Path) -> str:
            raise AdapterError("no memory here")

        def free(self, digest: str) -> None:
            raise AssertionError("nothing was loaded")

    with engine_of_ranks(model, 2, cpu_backend="torch", allow_lora_loading=True, max_loras=1) as (engine, others):
        with pytest.raises(AdapterError, match="no memory here"):
            RankAdapters(Broken(), others).load(adapter)
        with pytest.raises(AdapterError, match="there is no directory 'missing'"):
            RankAdapters(Broken(), others).load(tmp_path / "missing")
        assert engine.adapters is not None
        shelf = RankAdapters(engine.adapters, others)
        other = build_adapter(tmp_path / "other", model, seed=2, r=3)
        digest = shelf.load(other)
        assert shelf.load(other) == digest
