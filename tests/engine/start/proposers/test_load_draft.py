"""What a draft model takes of a worker's memory, and which targets can have none."""

from pathlib import Path

import pytest
from transformers import MistralConfig

from contracts.errors import ConfigError, ModelError
from engine.speculation.proposers.draft import own_blocks
from tests.engine.grammars.answering import DEMO, VOCABULARY, random_model
from tests.engine.test_golden import make_engine
from tests.reference import build_model
from tests.variants import SIZES


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("target") / "target")


def test_a_draft_s_kv_is_part_of_the_pool_s_memory(target: Path) -> None:
    """Shows that a target whose draft is its twin gets half of the blocks from the same memory."""
    plain = make_engine(target, kv_memory=2 << 20, max_sequences=64)
    twin = make_engine(target, kv_memory=2 << 20, max_sequences=64, speculation="draft", draft_model=str(target))
    block = plain.pool.spec.block_bytes()
    assert plain.pool.counts[0] == (2 << 20) // block
    assert twin.pool.counts[0] == (2 << 20) // (2 * block)
    own = own_blocks(8, 16) * block
    assert twin.memory.kv_pool_bytes == twin.pool.counts[0] * 2 * block + own
    assert twin.memory.weights_bytes == 2 * plain.memory.weights_bytes
    assert twin.memory.token_bytes == plain.memory.token_bytes


def test_a_target_of_windows_alone_has_no_draft(target: Path, tmp_path: Path) -> None:
    sizes = {**SIZES, "vocab_size": VOCABULARY}
    windows = build_model(tmp_path / "windows", MistralConfig(**sizes, sliding_window=9))
    with pytest.raises(ConfigError, match=r"--draft-model.*all layers of windows see 9 tokens"):
        make_engine(windows, speculation="draft", draft_model=str(target))


def test_a_draft_is_of_our_own_families(target: Path) -> None:
    """And has the vocabulary of the target, which may be the demo model's too."""
    odd = build_config(target.parent / "odd", target, "Mamba2ForCausalLM")
    with pytest.raises(ModelError, match="Mamba2ForCausalLM is not supported"):
        make_engine(target, speculation="draft", draft_model=str(odd))
    engine = make_engine(DEMO, speculation="draft", draft_model=str(target))
    assert engine.proposer is not None


def build_config(directory: Path, target: Path, architecture: str) -> Path:
    """A copy of a model that says to be of another architecture."""
    directory.mkdir()
    for each in target.iterdir():
        text = each.read_bytes()
        if each.name == "config.json":
            text = text.replace(b"LlamaForCausalLM", architecture.encode())
        (directory / each.name).write_bytes(text)
    return directory
