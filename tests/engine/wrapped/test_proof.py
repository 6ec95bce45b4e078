"""What a start compares with transformers would see attention that is slightly another one, in every number format."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from contracts.errors import ModelError
from engine.model.config import HeadAttention
from engine.start import load_wrapped
from engine.wrapped.probe import OwnAttention, probe
from tests.engine.test_golden import make_engine
from tests.engine.wrapped.models import WRAPPED
from tests.reference import build_model


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in made:
            made[name] = build_model(tmp_path_factory.mktemp(name) / "model", WRAPPED[name]())
        return made[name]

    return directory


@pytest.mark.parametrize(("dtype", "quantization"), [("fp32", "none"), ("bf16", "none"), ("fp32", "int4")])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"scale": 0.3}),  # in place of 0.25
        ("cohere2", {"window": 10}),  # 9
        ("cohere2", {"window": 8}),
        ("gpt2", {"window": 12}),  # none
        ("gpt2", {"softcap": 1.0}),  # none
    ],
)
def test_another_attention_is_refused(
    name: str,
    changes: dict[str, Any],
    dtype: str,
    quantization: str,
    directories: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = directories(name)
    make_engine(directory, dtype=dtype, quantization=quantization)

    def altered(*arguments: Any) -> list[OwnAttention]:
        first, *others = probe(*arguments)
        assert isinstance(first.attention, HeadAttention)
        return [replace(first, attention=structs.replace(first.attention, **changes)), *others]

    monkeypatch.setattr(load_wrapped, "probe", altered)
    with pytest.raises(ModelError, match=r"attention 0 .* gives other answers"):
        backend = "torch" if "softcap" in changes else "auto"
        make_engine(directory, dtype=dtype, quantization=quantization, cpu_backend=backend)
