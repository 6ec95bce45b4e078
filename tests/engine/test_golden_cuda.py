"""Tokens equal transformers' greedy tokens in fp32 on a GPU, by its own kernels and graphs, launched ahead or not.

In bf16 logits are as close to the exact ones as transformers' own bf16 logits are: `test_bf16.py` derives the bounds.
"""

from pathlib import Path

import pytest

from engine.executor import Executor
from tests.engine.drive import answers
from tests.engine.test_bf16 import (
    LENGTH,
    MAX_FURTHEST_RATIO,
    MAX_RATIO,
    SEQUENCES,
    UNIT_ROUNDOFF,
    build_rounded,
    errors,
    our_logits,
    reference_logits,
)
from tests.engine.test_golden import make_engine
from tests.reference import build_model, golden, make_prompts
from tests.variants import VARIANTS

LENGTHS = [1, 2, 7, 15, 16, 17, 33, 47, 64, 97]
NEW_TOKENS = 12
UNSUPPORTED = {"llama-odd-head": "a head size of 22 is no multiple of 16, which the attention kernels ask for"}

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in UNSUPPORTED])
def test_every_architecture_gives_the_references_tokens(variant: str, tmp_path: Path) -> None:
    """A ragged batch: prompts of many lengths in chunks of 13, joining one after the other, so that steps mix both."""
    config = VARIANTS[variant]()
    directory = build_model(tmp_path / variant, config)
    expected = golden(directory, make_prompts(LENGTHS, config.get_text_config().vocab_size), NEW_TOKENS)
    executor = Executor(make_engine(directory, device="cuda"))
    for ahead in (False, True):
        assert answers(executor, expected, stagger=1, chunk=13, ahead=ahead) == [each.tokens for each in expected], (
            f"ahead: {ahead}"
        )


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_in_bf16_logits_are_as_close_to_the_exact_ones_as_transformers(variant: str, tmp_path: Path) -> None:
    config = VARIANTS[variant]()
    directory = build_rounded(tmp_path / variant, config)
    texts = make_prompts([LENGTH] * SEQUENCES, config.vocab_size)
    exact, theirs = reference_logits(directory, texts)
    their_error, their_furthest = errors(theirs, exact)
    executor = Executor(make_engine(directory, device="cuda", dtype="bf16"))
    error, furthest = errors(our_logits(executor, texts), exact)
    print(f"{variant}: {error:.4f}, transformers {their_error:.4f}; {furthest:.4f}, {their_furthest:.4f}")
    assert error <= MAX_RATIO * their_error
    assert error <= UNIT_ROUNDOFF * (12 * config.num_hidden_layers + 3) ** 0.5
    assert furthest <= MAX_FURTHEST_RATIO * their_furthest
