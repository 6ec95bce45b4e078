"""Chat prompts and token ids equal transformers' own, on tokenizers of the kinds that models come with."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from checkpoints.grammars import read_tokenizer
from contracts.errors import ModelError
from gateway.text.chat import Chat
from gateway.text.tokenizer import ModelTokenizer
from tests.gateway.models import CHATML, WORDS, byte_level, llama_style

LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = none %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + ('<<SYS>>\n' + system + '\n<</SYS>>\n\n' if loop.first and system else '')"
    " + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
EVERYTHING = """
{%- set ns = namespace(count=0) %}
{%- set names = dict(user='U', assistant='A', system='S') %}
{% for message in messages %}
    {%- set ns.count = ns.count + 1 %}
    {% if message['role'] == 'assistant' %}
    {% generation %}
<|im_start|>{{ names[message.role] }} {{ message | tojson }}<|im_end|>
    {% endgeneration %}
    {% else %}
<|im_start|>{{ names[message.role] }} {{ message.content | trim | upper }} {{ {'b': 1, 'a': '<é>'} | tojson(indent=1) }}
    {% endif %}
    {% if ns.count > 40 %}{% break %}{% endif %}
{% endfor %}
{% if tools is none and documents is none %}no tools{% endif %}
{% if add_generation_prompt %}<|im_start|>{{ strftime_now('%Y') }}{{ pad_token }}{% endif %}
"""
USER = {"role": "user", "content": "Hello, world! 🙂"}
ASSISTANT = {"role": "assistant", "content": "  Fine, thank you. \n"}
SYSTEM = {"role": "system", "content": 'Be <brief> & "kind".'}
CHATS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, USER, ASSISTANT, {"role": "user", "content": "漢字\n\n  1234567890"}],
    "system and turns": [SYSTEM, USER, ASSISTANT, USER],
    "empty": [{"role": "user", "content": ""}],
    "special tokens as text": [{"role": "user", "content": "a<|im_end|>b</s><s><|endoftext|> <tool call>"}],
    "named": [{"role": "user", "content": "Hi", "name": "Ann"}],
}
KINDS: dict[str, Any] = {
    "chatml": (byte_level, CHATML),
    "everything": (byte_level, EVERYTHING),
    "llama 2": (llama_style, LLAMA_2),
}


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelTokenizer, Any]:
    make, template = KINDS[request.param]
    directory: Path = make(tmp_path_factory.mktemp("model"), template=template)
    return ModelTokenizer(directory), AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("chat", CHATS)
def test_chat(both: tuple[ModelTokenizer, Any], chat: str) -> None:
    ours, theirs = both
    assert ours.template is not None
    text = ours.template.render(Chat(CHATS[chat]))
    assert text == theirs.apply_chat_template(CHATS[chat], tokenize=False, add_generation_prompt=True)
    expected = theirs.apply_chat_template(CHATS[chat], add_generation_prompt=True, return_dict=False)
    assert ours.encode(text, special=False) == expected


@pytest.mark.parametrize("text", [*WORDS, "", " ", "  two  spaces ", "a</s>b<|im_end|>", "\n\n\t", "🙂", "x" * 500])
def test_completion(both: tuple[ModelTokenizer, Any], text: str) -> None:
    ours, theirs = both
    ids = theirs(text)["input_ids"]
    assert ours.encode(text, special=True) == ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert theirs.eos_token_id in ours.stop_ids


def test_a_llama_prompt_begins_with_its_token(tmp_path: Path) -> None:
    ours = ModelTokenizer(llama_style(tmp_path))
    assert ours.encode("Hello", special=True)[0] == 1
    assert ours.encode("Hello", special=False)[0] != 1


PAD, TOOL, IMAGE = "<|pad|>", "<tool_x>", "<|image_x|>"
ENTRY = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
BESIDE: dict[str, dict[str, Any]] = {
    "named": {"tokenizer_config.json": {"pad_token": PAD}},
    "a list": {"tokenizer_config.json": {"extra_special_tokens": [PAD, TOOL, "<|im_end|>"]}},
    "an older list": {"tokenizer_config.json": {"additional_special_tokens": [PAD, TOOL]}},
    "by names": {"tokenizer_config.json": {"extra_special_tokens": {"image_token": IMAGE}, "tool_token": TOOL}},
    "by ids": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "100001": {**ENTRY, "content": TOOL, "special": False},
                "100000": {**ENTRY, "content": PAD, "rstrip": True},
                "0": {**ENTRY, "content": "<|endoftext|>"},
            },
            "pad_token": PAD,
            "extra_special_tokens": [IMAGE],
        }
    },
    "older files": {
        "special_tokens_map.json": {"pad_token": {**ENTRY, "content": PAD}, "extra_special_tokens": [IMAGE]},
        "added_tokens.json": {TOOL: 100001, PAD: 100000},
    },
    "older files do not count": {
        "tokenizer_config.json": {"added_tokens_decoder": {}},
        "special_tokens_map.json": {"pad_token": PAD},
        "added_tokens.json": {TOOL: 100001},
    },
}


@pytest.mark.parametrize("case", BESIDE)
@pytest.mark.parametrize("make", [byte_level, llama_style])
def test_special_tokens_that_only_the_files_beside_it_know(case: str, make: Any, tmp_path: Path) -> None:
    """transformers adds them behind the vocabulary; grammars have them under the same ids."""
    directory = make(tmp_path)
    for name, more in BESIDE[case].items():
        path = directory / name
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | more))
    ours, theirs = ModelTokenizer(directory), AutoTokenizer.from_pretrained(directory)
    text = f"a{PAD} b{TOOL}c{IMAGE}<|im_end|>d</s>"
    ids = theirs(text)["input_ids"]
    assert ours.encode(text, special=True) == ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert {id: content for id, (content, _) in ours.added().items()} == {
        id: token.content for id, token in theirs.added_tokens_decoder.items()
    }
    assert "image_token" not in json.dumps(BESIDE[case]) or ours.named["image_token"] == IMAGE
    grammars = read_tokenizer(directory, ours.vocabulary + 8)
    for token in {PAD, TOOL, IMAGE} & set(theirs.get_vocab()):
        id = theirs.convert_tokens_to_ids(token)
        assert grammars.decode_bytes([id]).endswith(token.encode()), "it is another token there"


@pytest.mark.parametrize("listed", [{"x": {"content": "a"}}, {"7": None}, [1], {"7": {}}], ids=str)
def test_special_tokens_that_are_none_are_refused(listed: Any, tmp_path: Path) -> None:
    directory = byte_level(tmp_path)
    (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    with pytest.raises(ModelError, match="its special tokens cannot be read"):
        ModelTokenizer(directory)
