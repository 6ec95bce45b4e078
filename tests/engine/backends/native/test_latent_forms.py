"""Works in the expanded form beside absorbed ones, in the native operators."""

import ctypes
from pathlib import Path

import pytest
import torch

from engine.backends.native import latent_forms, layers
from engine.backends.native.attention import NativeAttentionStep
from engine.backends.native.backend import NativeBackend
from engine.backends.native.latent_forms import LatentForms
from engine.backends.native.linear_layers.linear import NativeLinear
from engine.backends.native.linears import NativeLinears
from engine.engine import Engine
from engine.model.batch import build_batch
from engine.model.config import LatentAttention
from engine.plan import StepPlan, Work
from tests.engine.drive import answers
from tests.engine.test_golden import make_executor
from tests.reference import build_model, golden, make_prompts
from tests.variants import VARIANTS


@pytest.mark.parametrize("variant", ["deepseek-v2-lite", "deepseek-v3-dense"])
def test_expanded_works_give_the_references_tokens(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32, where the engine itself expands none; whole prompts, chunks and decodes share steps."""
    directory = build_model(tmp_path / variant, VARIANTS[variant]())
    expected = golden(directory, make_prompts([1, 7, 15, 64, 65, 97, 140, 200], 320, seed=4), 8)
    monkeypatch.setattr(latent_forms, "ABSORBED_ONLY_DTYPES", frozenset())
    seen: list[tuple[int, int]] = []

    class Watched(LatentForms):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            seen.append((len(self.absorbing), len(self.expansions)))

    monkeypatch.setattr(layers, "LatentForms", Watched)
    executor = make_executor(directory, cpu_backend="native")
    assert answers(executor, expected, stagger=1, chunk=80) == [each.tokens for each in expected]
    assert any(absorbed and expanded for absorbed, expanded in seen) and any(not absorbed for absorbed, _ in seen)
    assert any(absorbed and not expanded for absorbed, expanded in seen)


def test_what_builds_keys_is_held_only_where_works_expand(native: ctypes.CDLL) -> None:
    """Three heads have what absorbs a query and what makes a value, and in bf16 what builds a key."""
    for dtype, products in ((torch.float32, 2), (torch.bfloat16, 3)):
        held = NativeLinears(native, dtype).latent(torch.ones(3, 16, 32), torch.ones(3, 16, 32)).held()
        assert len(held) == 3 * products * len(NativeLinear(native, torch.ones(16, 32, dtype=dtype), None).held())


def forms_of(engine: Engine, shape: list[tuple[int, int]]) -> LatentForms:
    """How works with these starts and lengths attend in the first layer."""
    backend, attention = engine.backend, engine.model_config.layers[0].attention
    assert isinstance(backend, NativeBackend) and isinstance(attention, LatentAttention)
    works = [Work(number, start, [0] * count, ([*range(1, 9)],)) for number, (start, count) in enumerate(shape)]
    batch = build_batch(StepPlan(0, works), 16, torch.device("cpu"), None)
    step = engine.attention.begin(batch)
    assert isinstance(step, NativeAttentionStep)
    return LatentForms(backend._native, batch, step.group_of(0), attention, backend.dtype)


def test_in_fp32_all_works_are_absorbed_and_in_bf16_long_chunks_are_expanded(tmp_path: Path) -> None:
    directory = build_model(tmp_path / "model", VARIANTS["deepseek-v3-dense"]())
    for dtype, expanding in (("fp32", ()), ("bf16", (1,))):
        executor = make_executor(directory, cpu_backend="native", dtype=dtype)
        found = forms_of(executor.engine, [(30, 1), (0, 60), (40, 3)])
        assert found.expanding == expanding
        rows = [(rows.first, rows.count) for rows in found.absorbing]
        assert rows == ([(0, 1), (61, 3)] if expanding else [(0, 64)])
