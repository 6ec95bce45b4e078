"""Chats of every family of models are rendered as transformers renders them, or refused where it refuses them.

The templates are written after the published formats; Llama 4's and SmolVLM's are those that transformers comes with.
"""

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers.models.llama4.processing_llama4 import chat_template as llama4
from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE as smolvlm
from transformers.utils.chat_template_utils import render_jinja_template

from gateway.errors import APIError
from gateway.text.chat import Chat
from gateway.text.chat_template import ChatTemplate

SOURCES = {path.stem: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.jinja")}
SOURCES |= {"llama4": llama4, "smolvlm": smolvlm}
OTHERS = Path(__file__).parent.parent / "output" / "templates"
SOURCES |= {path.stem: path.read_text() for path in OTHERS.glob("*.jinja")}
WITH_CONTENT = {"llama4"}
"""Templates that show the content of a message which has nothing but calls."""
WITHOUT_CALLS = {"command_r", "deepseek_v2", "olmo2", "phi3", "smollm3", "smolvlm"}
"""Templates that leave calls out, so that a call is a line of the content."""
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}

USER = {"role": "user", "content": "  What's the <weather> in 東京? \n"}
ANSWER = {"role": "assistant", "content": "\nFine & dry. "}
SYSTEM = {"role": "system", "content": "Be brief. /no_think"}
THOUGHT = {"role": "assistant", "content": "Dry.", "reasoning_content": "It rained\nyesterday."}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "東京", "days": 2, "exact": True}},
        }
    ],
}
CALL_LINE = CALL["tool_calls"][0]["function"]
RESULT = {"role": "tool", "content": '{"sky": "blue"}', "name": "weather", "tool_call_id": "call00001"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where."},
                    "days": {"type": "integer"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "hours": {"type": "array", "items": {"type": "number"}},
                    "place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
                },
                "required": ["city"],
            },
        },
    }
]
PARTS = {"role": "user", "content": [{"type": "text", "text": " Hello "}, {"type": "text", "text": "there"}]}
CHATS: dict[str, Chat] = {
    "one": Chat([USER]),
    "system and turns": Chat([SYSTEM, USER, ANSWER, USER]),
    "to its end": Chat([USER, ANSWER], answer=False),
    "going on": Chat([SYSTEM, USER, ANSWER], answer=False, continues=True),
    "going on behind spaces": Chat([USER, {"role": "assistant", "content": "It is \n "}], answer=False, continues=True),
    "a thought": Chat([USER, THOUGHT], answer=False),
    "a thought before a call": Chat([USER, {**CALL, "reasoning_content": "Look."}, RESULT], TOOLS),
    "tools": Chat([SYSTEM, USER], TOOLS),
    "tools and no system": Chat([USER, ANSWER, USER], TOOLS),
    "a call": Chat([USER, CALL, RESULT], TOOLS),
    "a call, and on": Chat([SYSTEM, USER, CALL, RESULT, ANSWER, USER], TOOLS),
    "parts": Chat([PARTS]),
    "options": Chat([USER], options={"enable_thinking": False, "reasoning_effort": "high", "thinking": True}),
    "turns that do not alternate": Chat([USER, USER]),
    "a result of nothing": Chat([USER, RESULT]),
}


def theirs(name: str, chat: Chat) -> str | None:
    """What transformers makes of it, which is told of calls as the model's card tells to; None: it refuses."""
    messages = [
        {**message, "content": json.dumps(CALL_LINE, ensure_ascii=False) if name in WITHOUT_CALLS else ""}
        if message["content"] is None and name in WITH_CONTENT | WITHOUT_CALLS
        else message
        for message in chat.messages
    ]
    try:
        rendered, _ = render_jinja_template(
            [messages],
            tools=chat.tools,
            chat_template=SOURCES[name],
            add_generation_prompt=chat.answer,
            continue_final_message=chat.continues,
            **{**SPECIAL, **chat.options},
        )
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError):
        return None
    return str(rendered[0])


def ours(template: ChatTemplate, chat: Chat) -> str | None:
    try:
        return template.render(chat)
    except APIError as refusal:
        assert refusal.status == 400
        return None


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_chats_are_rendered_as_transformers_does(name: str) -> None:
    template = ChatTemplate(SOURCES[name], SPECIAL)
    found = {chat: ours(template, CHATS[chat]) for chat in CHATS}
    assert found == {chat: theirs(name, CHATS[chat]) for chat in CHATS}
    assert len({text for text in found.values() if text is not None}) >= 4, "the chats are told apart"
