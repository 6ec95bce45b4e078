"""What is read from a model directory, and the sentence where that cannot work."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from contracts.errors import ModelError
from gateway.errors import APIError
from gateway.text.chat import Chat
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import ModelTokenizer
from tests.gateway.models import byte_level


def test_the_stop_ids_come_from_all_three_files(tmp_path: Path) -> None:
    byte_level(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2], "top_p": 0.9}))
    tokenizer = ModelTokenizer(tmp_path)
    assert tokenizer.stop_ids == (0, 2)
    assert tokenizer.defaults == {"top_p": 0.9}


@pytest.mark.parametrize(
    "settings", [{"chat_template": "T"}, {"chat_template": [{"name": "default", "template": "T"}]}]
)
def test_a_template_in_the_tokenizers_config(tmp_path: Path, settings: dict[str, Any]) -> None:
    byte_level(tmp_path, template=None)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    template = ModelTokenizer(tmp_path).template
    assert template is not None and template.render(Chat([])) == "T"


TOOLS = [{"type": "function", "function": {"name": "f", "description": "F.", "parameters": {"type": "object"}}}]
LISTED = [{"name": name, "template": f"listed {name}"} for name in ("default", "tool_use", "rag")]


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        ({"chat_template.jinja": "one"}, {}),
        ({"chat_template.jinja": "one"}, {"chat_template": LISTED}),  # files win, all of them
        ({"chat_template.jinja": "one", "additional_chat_templates/tool_use.jinja": "tools"}, {"chat_template": "x"}),
        ({"chat_template.jinja": "one", "additional_chat_templates/rag.jinja": "rag"}, {}),
        ({"additional_chat_templates/default.jinja": "one", "additional_chat_templates/tool_use.jinja": "tools"}, {}),
        ({}, {"chat_template": "one"}),
        ({}, {"chat_template": LISTED}),
        ({}, {"chat_template": LISTED[::2]}),
        ({"chat_template.json": json.dumps({"chat_template": "a processor's"})}, {"chat_template": "one"}),
    ],
)
def test_the_template_of_a_chat_is_the_one_that_transformers_takes(
    files: dict[str, str], settings: dict[str, Any], tmp_path: Path
) -> None:
    directory = byte_level(tmp_path, template=None)
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    config = directory / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    template, theirs = ModelTokenizer(directory).template, AutoTokenizer.from_pretrained(directory)
    assert template is not None
    for tools in (None, TOOLS):
        found = template.render(Chat([{"role": "user", "content": "a"}], tools))
        assert found == theirs.apply_chat_template([{"role": "user", "content": "a"}], tools=tools, tokenize=False)


def test_a_processors_template_serves_where_there_is_no_other(tmp_path: Path) -> None:
    directory = byte_level(tmp_path, template=None)
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": "a processor's"}))
    template = ModelTokenizer(directory).template
    assert template is not None and template.render(Chat([])) == "a processor's"


def test_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    directory = byte_level(tmp_path)
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"additional_chat_templates/tool_use\.jinja cannot be read"):
        ModelTokenizer(directory)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("broken", [None, "{", "[]"])
def test_a_missing_or_broken_file_is_named(tmp_path: Path, name: str, broken: str | None) -> None:
    path = byte_level(tmp_path) / name
    path.unlink() if broken is None else path.write_text(broken)
    with pytest.raises(ModelError, match=name):
        ModelTokenizer(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ namespace(_x=1) }}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ 5 | dictsort }}",
        "{{ range(10000000) | list }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(APIError) as refusal:
        ChatTemplate(source, {}).render(Chat([{"role": "user", "content": "x"}]))
    assert refusal.value.status == 400


def test_a_template_that_does_not_compile_is_the_models_fault() -> None:
    with pytest.raises(ModelError, match="template is broken"):
        ChatTemplate("{% for %}", {})
