"""Templates get the calls of earlier messages as each of them wants it."""

from typing import Any

import pytest

from gateway.text.chat import Chat
from gateway.text.chat_template import ChatTemplate

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
SAID: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
]
HEAD = "{% for m in messages %}[{{ m.role }}]"
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
OBJECTS = HEAD + "{{ m.content or '' }}" + CALLS + "{% endfor %}"
PIECES = (
    HEAD + "{% for c in m.tool_calls or [] %}{{ c.function.name + ':' + c.function.arguments }}{% endfor %}"
    "{{ m.content or '' }}{% endfor %}"
)
ALWAYS_TEXT = HEAD + "{{ m.content + '|' }}" + CALLS + "{% endfor %}"
ONLY_NONE = HEAD + "{% if m.content is none %}" + CALLS + "{% else %}{{ m.content }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (OBJECTS, '[user]x[assistant]{"name": "f", "arguments": {"a": "é"}}'),
        (PIECES, '[user]x[assistant]f:{"a": "é"}'),
        (ALWAYS_TEXT, '[user]x|[assistant]|{"name": "f", "arguments": {"a": "é"}}'),
        (ONLY_NONE, '[user]x[assistant]{"name": "f", "arguments": {"a": "é"}}'),
        ("no calls at all", "no calls at all"),
    ],
)
def test_calls(source: str, shown: str) -> None:
    assert ChatTemplate(source, {}).render(Chat(SAID)) == shown


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    broken = {**CALL, "function": {"name": "f", "arguments": "{broken"}}
    said = [{"role": "assistant", "content": "", "tool_calls": [broken]}]
    assert ChatTemplate(PIECES, {}).render(Chat(said)) == "[assistant]f:{broken"


def test_chats_with_tools_may_have_a_template_of_their_own() -> None:
    template = ChatTemplate("plain", {}, "tools: {{ tools[0].function.name }}")
    assert template.render(Chat(SAID)) == "plain"
    assert template.render(Chat(SAID, [{"type": "function", "function": {"name": "f"}}])) == "tools: f"
