"""What a start suggests to try is what the model's chat templates, wherever they are, can do."""

import json
from pathlib import Path

import pytest

from contracts.pooling import Pooling, PoolingTask
from launcher.greeting import chat_template, curl_line, pooled_line

NAMED = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools }}"}]


@pytest.mark.parametrize(
    ("files", "chats", "tools"),
    [
        ({}, False, False),
        ({"tokenizer_config.json": "{"}, False, False),
        ({"tokenizer_config.json": json.dumps({"chat_template": "plain"})}, True, False),
        ({"tokenizer_config.json": json.dumps({"chat_template": NAMED})}, True, True),
        ({"chat_template.jinja": "plain"}, True, False),
        ({"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "{{ tools }}"}, True, True),
    ],
)
def test_what_is_suggested(files: dict[str, str], chats: bool, tools: bool, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert ("tools" in chat_template(tmp_path)) == tools
    assert ("/v1/chat/completions" in curl_line("http://127.0.0.1:8000", "m", tmp_path)) == chats


@pytest.mark.parametrize(("task", "path"), [("embed", "/v1/embeddings"), ("score", "/v1/rerank")])
def test_what_is_suggested_of_a_model_of_vectors_or_scores(task: PoolingTask, path: str) -> None:
    assert f"http://127.0.0.1:8000{path} " in pooled_line("http://127.0.0.1:8000", "m", Pooling(task, "last"))
