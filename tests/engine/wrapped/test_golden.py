"""Models that transformers' own code computes over our KV give the tokens that transformers alone gives, in fp32."""

from pathlib import Path

import pytest

from tests.engine.drive import answers
from tests.engine.test_golden import make_executor
from tests.engine.wrapped.models import WRAPPED
from tests.reference import build_model, golden, make_prompts

LENGTHS = [1, 7, 16, 33, 47, 20, 26, 11, 4, 29]
NEW_TOKENS = 4


@pytest.mark.parametrize("variant", WRAPPED)
def test_every_model_type_gives_the_references_tokens(variant: str, tmp_path: Path) -> None:
    """A ragged batch: prompts of many lengths in chunks of 13, joining one after the other, so that steps mix both."""
    config = WRAPPED[variant]()
    directory = build_model(tmp_path / variant, config)
    expected = golden(directory, make_prompts(LENGTHS, config.get_text_config().vocab_size), NEW_TOKENS)
    executor = make_executor(directory, model_impl="transformers", kv_memory=32 << 20)
    assert answers(executor, expected, stagger=1, chunk=13) == [each.tokens for each in expected]
