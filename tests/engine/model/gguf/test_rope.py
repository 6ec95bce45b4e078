"""Positions are rotated by a GGUF file's own frequencies as by the original's config."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints.gguf.unpacking import unpacked
from engine.model.checkpoint.read_config import read_config
from engine.model.rope import inverse_frequencies
from tests.gguf_files import write_gguf
from tests.reference import build_model
from tests.variants import VARIANTS


def llama3_factors(writer: Any) -> None:
    """Adds what llama.cpp's converter makes of Llama 3's rotation: what each frequency is divided by."""
    config = VARIANTS["llama-llama3-rope"]()
    pairs, rope = config.head_dim // 2, config.rope_parameters
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for pair in range(pairs):
        turns = original * rope["rope_theta"] ** (-pair / pairs) / (2 * math.pi)
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / factor + smooth))
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))


def long_and_short(variant: str) -> Callable[[Any], None]:
    """Adds LongRoPE's two lists, and the factor of attention that the converter writes."""

    def add(writer: Any) -> None:
        config = VARIANTS[variant]()
        rope, original = config.rope_parameters, config.original_max_position_embeddings
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], np.float32))
        computed = math.sqrt(1 + math.log(rope["factor"]) / math.log(original)) if original > 1 else 1.0
        writer.add_rope_scaling_attn_factors(rope["attention_factor"] or computed)

    return add


CASES = {
    "llama-llama3-rope": ("llama", llama3_factors),
    "llama-yarn-rope": ("llama", lambda writer: None),
    "phi3-longrope": ("phi3", long_and_short("phi3-longrope")),
    "phi4-shortrope": ("phi3", long_and_short("phi4-shortrope")),
}


@pytest.mark.parametrize("variant", CASES)
def test_frequencies_are_those_of_the_original(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are fp32: the file's factors are rounded once, and a division by them once more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    architecture, change = CASES[variant]
    original = build_model(tmp_path / "original", VARIANTS[variant]())
    file = write_gguf(original, tmp_path / "model.gguf", architecture, change=change)
    found, expected = (read_config(each).ropes[0] for each in (unpacked(file), original))
    torch.testing.assert_close(inverse_frequencies(found), inverse_frequencies(expected), rtol=2**-22, atol=0)
    assert found.magnitude == pytest.approx(expected.magnitude, rel=2**-22)
    assert found.dim == expected.dim
