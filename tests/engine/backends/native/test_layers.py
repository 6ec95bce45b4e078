"""A layer in two native calls is its operators one after the other, to the bit."""

from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch import Tensor

from engine.backends.native import latent_forms
from engine.backends.native.attention import NativeAttentionStep
from engine.backends.native.backend import NativeBackend
from engine.backends.native.layers import NativeLayers
from engine.backends.native.library import DTYPE_CODES
from engine.model.batch import Batch, build_batch
from engine.model.config import ModelConfig
from engine.model.transformer import Layers, OperatorLayers
from engine.plan import StepPlan, Work
from tests.engine.backends.native.elementwise import NativeElementwise
from tests.engine.drive import GREEDY
from tests.engine.test_golden import make_engine
from tests.reference import build_model
from tests.variants import VARIANTS

CHUNK = Work(1, 5, list(range(40, 70)), ([3, 1, 2],))
SAMPLED = [Work(2, 0, [9, 8, 7], ([4],), GREEDY), Work(3, 20, [6], ([5, 6],), GREEDY)]
PLANS = {
    "chunks and decodes": [SAMPLED[0], CHUNK, SAMPLED[1]],
    "every row sampled": [SAMPLED[1], Work(4, 0, [1], ([7],), GREEDY)],
    "no row sampled": [CHUNK],
}


@pytest.mark.parametrize("works", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "variant",
    [
        "llama",
        "llama-biases",
        "llama-odd-head",
        "mistral-window",
        "qwen3",
        "gemma2",
        "gemma3",
        "olmo2",
        "glm4",
        "smollm3",
        "deepseek-v3-dense",
    ],
)
def test_two_calls_a_layer_equal_its_operators(
    variant: str, dtype: str, works: list[Work], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        latent_forms, "ABSORBED_ONLY_DTYPES", frozenset(DTYPE_CODES)
    )  # the other form rounds other numbers
    directory = build_model(tmp_path / variant, VARIANTS[variant]())
    engine = make_engine(directory, cpu_backend="native", dtype=dtype, kv_memory=1 << 20)
    config, backend, native = engine.model_config, engine.backend, engine.model._layers  # type: ignore[attr-defined]
    assert isinstance(native, NativeLayers) and isinstance(backend, NativeBackend)
    assert isinstance(config, ModelConfig)
    between = NativeElementwise(backend._native, config.ropes, backend.dtype, config.norm_eps)
    groups = len(engine.pool.counts)
    works = [structs.replace(work, blocks=work.blocks * groups) for work in works]
    batch = build_batch(StepPlan(1, works), 16, torch.device("cpu"), None)

    def run(layers: Layers[NativeAttentionStep]) -> tuple[Tensor, list[Tensor]]:
        """What comes out of stale KV that is the same for both, and all KV afterwards."""
        for number, pool in enumerate(engine.pool.layers):
            pool.copy_(torch.randn(pool.shape, generator=torch.Generator().manual_seed(number)))
        stored: list[int] = []
        found = layers.forward(embeddings(batch), batch, engine.attention.begin(batch), stored.append)
        assert stored == list(range(len(config.layers)))
        return found.clone(), [pool.clone() for pool in engine.pool.layers]

    def embeddings(batch: Batch) -> Tensor:
        shape = len(batch.token_ids), config.hidden_size
        return torch.randn(shape, generator=torch.Generator().manual_seed(9)).to(backend.dtype)

    with torch.inference_mode():
        found, kv = run(native)
        expected, kept = run(OperatorLayers(config, native._layers, native._norm, between))
    assert found.shape == (len(batch.logit_rows), config.hidden_size)
    assert torch.equal(found, expected)
    assert all(torch.equal(*pair) for pair in zip(kv, kept, strict=True))
