"""Tokens with adapters equal PEFT's, in fp32, on every backend; mixed batches equal each adapter alone."""

from pathlib import Path
from typing import Any

import pytest

from core.config import EngineConfig
from engine.executor import Executor
from engine.start.load import LoadedEngine, load_engine
from tests.engine.drive import run, start
from tests.reference import VARIANTS, build_adapter, build_model, golden, make_prompts

LENGTHS = [1, 7, 16, 33, 64]
NEW_TOKENS = 10
BACKENDS = ("torch",)
ADAPTERS: dict[str, dict[str, Any]] = {
    "rank-4": {"r": 4},
    "rank-16-rslora": {"r": 16, "lora_alpha": 8, "use_rslora": True},
    "attention-only": {"target_modules": ["q_proj", "v_proj"], "r": 5},
    "patterns": {
        "rank_pattern": {"layers.1.mlp.up_proj": 3, r"model.layers.\d.self_attn.k_proj": 2},
        "alpha_pattern": {"o_proj": 3, "layers.2.mlp.down_proj": 24},
    },
    "one-layer": {"target_modules": ["gate_proj"], "layers_to_transform": [2]},
}


def adapted_engine(directory: Path, **changes: object) -> LoadedEngine:
    """An engine that takes adapters."""
    settings: dict[str, object] = dict(
        model=str(directory), device="cpu", dtype="fp32", kv_memory=4 << 20, max_model_len=256, allow_lora_loading=True
    )
    return load_engine(EngineConfig(**{**settings, **changes}), lambda stage, percent: None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("adapted") / "llama", VARIANTS["llama"]())


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_gives_pefts_tokens(kind: str, llama: Path, tmp_path: Path) -> None:
    adapter = build_adapter(tmp_path / kind, llama, **ADAPTERS[kind])
    prompts = make_prompts(LENGTHS, 320)
    expected = golden(llama, prompts, NEW_TOKENS, adapter=adapter)
    assert [each.tokens for each in expected] != [each.tokens for each in golden(llama, prompts, NEW_TOKENS)]
    for backend in BACKENDS:
        engine = adapted_engine(llama, cpu_backend=backend)
        assert engine.adapters is not None
        digest = engine.adapters.load(adapter)
        executor = Executor(engine)
        running = start(executor, [each.prompt for each in expected], NEW_TOKENS, adapters=[digest] * len(expected))
        assert run(executor, running, NEW_TOKENS, chunk=13) == [each.tokens for each in expected], backend
