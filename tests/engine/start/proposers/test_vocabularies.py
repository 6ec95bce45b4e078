"""A draft model has the target's tokens, or is refused in a sentence that names both."""

import json
import shutil
from pathlib import Path

import pytest

from contracts.errors import ConfigError, ModelError
from engine.start.proposers.vocabularies import refuse_other_vocabulary

DEMO = Path(__file__).resolve().parents[4] / "demo_model" / "weights"


def changed(directory: Path, old: str, new: str) -> Path:
    """The demo model's tokenizer with another word for one of its tokens."""
    directory.mkdir()
    made = json.loads((DEMO / "tokenizer.json").read_text(encoding="utf-8"))
    for token in made["added_tokens"]:
        token["content"] = new if token["content"] == old else token["content"]
    if old in made["model"]["vocab"]:
        made["model"]["vocab"][new] = made["model"]["vocab"].pop(old)
    (directory / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
    return directory


def test_the_same_tokens_pass(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    shutil.copy(DEMO / "tokenizer.json", tmp_path / "copy")
    refuse_other_vocabulary("--draft-model", "copy", tmp_path / "copy", DEMO)


def test_another_token_is_named(tmp_path: Path) -> None:
    other = changed(tmp_path / "other", "<tool_call>", "<tool-call>")
    wrong = (
        "--draft-model: 'given': other has another vocabulary than weights: the token '<tool-call>' is 2044 here, and"
    )
    with pytest.raises(ConfigError, match=wrong):
        refuse_other_vocabulary("--draft-model", "given", other, DEMO)


def test_another_size_is_named(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    made = json.loads((DEMO / "tokenizer.json").read_text(encoding="utf-8"))
    made["added_tokens"].append({**made["added_tokens"][0], "id": 2048, "content": "<more>"})
    (tmp_path / "more" / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
    with pytest.raises(ConfigError, match="more has another vocabulary than weights: 2049 tokens, not 2048"):
        refuse_other_vocabulary("--draft-model", "given", tmp_path / "more", DEMO)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        refuse_other_vocabulary("--draft-model", "given", tmp_path, DEMO)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        refuse_other_vocabulary("--draft-model", "given", tmp_path, DEMO)
