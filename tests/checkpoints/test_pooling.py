"""Models of vectors and scores are known by the files that publishers write, and no method is guessed."""

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints.pooling import longest_text, read_pooling
from contracts.errors import BatonError, ConfigError, ModelError
from contracts.pooling import Pooling
from infra.config.engine import EngineOptions
from tests.embedding_models import with_modules
from tests.gateway.models import byte_level

AUTO = EngineOptions()
RERANKER = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}


def model(directory: Path, modules: str = "", **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if modules:
        with_modules(directory, modules)
    return directory


@pytest.mark.parametrize(
    ("modules", "config", "expected"),
    [
        ("", {"architectures": ["Qwen3ForCausalLM"]}, None),
        ("pooling_mode_lasttoken", {"architectures": ["Qwen3ForCausalLM"]}, Pooling("embed", "last")),
        ("pooling_mode_mean_tokens", {"architectures": ["BertModel"]}, Pooling("embed", "mean")),
        ("pooling_mode_cls_token", {"is_matryoshka": True}, Pooling("embed", "cls", matryoshka=True)),
        (
            "pooling_mode_cls_token",
            {"matryoshka_dimensions": [64, 32]},
            Pooling("embed", "cls", matryoshka=True, dimensions=(64, 32)),
        ),
        ("", RERANKER, Pooling("score", "last")),
        (
            "",
            {**RERANKER, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
            Pooling("score", "last", sigmoid=False),
        ),
    ],
)
def test_files_say_what_a_model_gives(
    modules: str, config: dict[str, Any], expected: Pooling | None, tmp_path: Path
) -> None:
    assert read_pooling(model(tmp_path, modules, **config), AUTO) == expected


def test_the_newer_form_of_a_pooling_is_read(tmp_path: Path) -> None:
    directory = model(tmp_path, "pooling_mode_cls_token")
    for written, method in (("lasttoken", "last"), ("mean", "mean")):
        (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": written}))
        assert read_pooling(directory, AUTO) == Pooling("embed", method)  # type: ignore[arg-type]
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    assert longest_text(directory) == 256


def test_options_come_before_the_files(tmp_path: Path) -> None:
    directory = model(tmp_path, "pooling_mode_cls_token", architectures=["BertModel"])
    assert read_pooling(directory, EngineOptions(pooling="none")) is None
    assert read_pooling(directory, EngineOptions(pooling="mean", matryoshka=True)) == Pooling(
        "embed", "mean", matryoshka=True
    )
    plain = byte_level(tmp_path / "plain", architectures=["Qwen3ForCausalLM"])
    assert read_pooling(plain, EngineOptions(pooling="last")) == Pooling("embed", "last")
    assert read_pooling(plain, EngineOptions(score_tokens="a,b")) == Pooling("score", "last", tokens=(67, 68))


def test_two_tokens_are_named_by_the_config_or_by_a_module(tmp_path: Path) -> None:
    named = byte_level(tmp_path / "named", classifier_from_token=["a", "b"])
    assert read_pooling(named, AUTO) == Pooling("score", "last", tokens=(67, 68))
    (tmp_path / "module" / "1_LogitScore").mkdir(parents=True)
    module = model(tmp_path / "module")
    (module / "modules.json").write_text(json.dumps([{"type": "x.LogitScore", "path": "1_LogitScore"}]))
    (module / "1_LogitScore" / "config.json").write_text('{"true_token_id": 9, "false_token_id": 2}')
    assert read_pooling(module, AUTO) == Pooling("score", "last", tokens=(2, 9))


@pytest.mark.parametrize(
    ("modules", "config", "options", "error", "words"),
    [
        ("", {"architectures": ["BertModel"]}, AUTO, ModelError, "--pooling last, mean or cls"),
        ("pooling_mode_max_tokens", {}, AUTO, ModelError, "pooling_mode_max_tokens"),
        ("", {"architectures": ["BertForSequenceClassification"]}, AUTO, ModelError, "2 labels"),
        ("", {}, EngineOptions(score_tokens="yes"), ConfigError, "--score-tokens"),
    ],
)
def test_what_is_not_served_is_said_by_name(
    modules: str, config: dict[str, Any], options: EngineOptions, error: type[BatonError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        read_pooling(model(tmp_path, modules, **config), options)


def test_other_modules_and_words_are_refused(tmp_path: Path) -> None:
    directory = model(tmp_path)
    (directory / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense", "path": ""}]))
    with pytest.raises(ModelError, match="Dense"):
        read_pooling(directory, AUTO)
    with pytest.raises(ConfigError, match="'zebra' is no token"):
        read_pooling(byte_level(tmp_path / "words"), EngineOptions(score_tokens="a,zebra"))
