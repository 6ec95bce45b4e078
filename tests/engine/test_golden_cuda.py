"""Tokens equal transformers' greedy tokens in fp32 on a GPU, by its own kernels and graphs, launched ahead or not."""

from pathlib import Path

import pytest

from engine.executor import Executor
from tests.engine.drive import run, start
from tests.engine.test_golden import make_engine
from tests.reference import VARIANTS, build_model, golden, make_prompts

LENGTHS = [1, 2, 7, 15, 16, 17, 33, 47, 64, 97]
NEW_TOKENS = 12
UNSUPPORTED = {"llama-odd-head": "a head size of 22 is no multiple of 16, which the attention kernels ask for"}

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in UNSUPPORTED])
def test_every_architecture_gives_the_references_tokens(variant: str, tmp_path: Path) -> None:
    """A ragged batch: prompts of many lengths in chunks of 13, joining one after the other, so that steps mix both."""
    config = VARIANTS[variant]()
    directory = build_model(tmp_path / variant, config)
    expected = golden(directory, make_prompts(LENGTHS, config.vocab_size), NEW_TOKENS)
    executor = Executor(make_engine(directory, device="cuda"))
    for ahead in (False, True):
        running = start(executor, [each.prompt for each in expected], NEW_TOKENS, stagger=1)
        found = run(executor, running, NEW_TOKENS, chunk=13, ahead=ahead)
        assert found == [each.tokens for each in expected], f"ahead: {ahead}"
