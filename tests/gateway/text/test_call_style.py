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


LEFT_OUT = HEAD + "{{ m.content or '' }}{% endfor %}"
JOINED = HEAD + "{{ m.content + '|' }}{% endfor %}"
LINE = '{"name": "f", "arguments": {"a": "é"}}'


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (LEFT_OUT, f"[user]x[assistant]{LINE}"),
        (JOINED, f"[user]x|[assistant]{LINE}|"),  # and null would be refused
        (HEAD + "{{ (m.content + '|') | length > 0 }}{% endfor %}", "[user]True[assistant]True"),  # nothing is shown
        ("{% if m %}" + LEFT_OUT + "{% endif %}never", "never"),
    ],
)
def test_a_template_that_leaves_calls_out_has_them_as_lines_of_the_content(source: str, shown: str) -> None:
    assert ChatTemplate(source, {}).render(Chat(SAID)) == shown


def test_lines_of_calls_stand_behind_what_is_said() -> None:
    both = [{"role": "assistant", "content": "Well.", "tool_calls": [CALL, CALL]}]
    assert ChatTemplate(JOINED, {}).render(Chat(both)) == f"[assistant]Well.\n{LINE}\n{LINE}|"


def test_a_template_that_refuses_results_is_asked_without_them() -> None:
    alternating = "{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}" + JOINED
    assert ChatTemplate(alternating, {}).render(Chat(SAID)) == f"[user]x|[assistant]{LINE}|"


def test_ids_of_any_length_pass_where_only_nine_characters_do() -> None:
    """Shows Mistral's rule; ids of OpenAI's kind would be refused from the second turn on."""
    nine = "{% if c.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}{{ c.id }};"
    source = (
        HEAD + "{% for c in m.tool_calls or [] %}" + nine + "{{ c.function | tojson }}{% endfor %}"
        "{{ m.tool_call_id or '' }}{% endfor %}"
    )
    for id, kept in (("call_0123456789abcdef", False), ("Ab3dE6gH9", True)):
        said: list[dict[str, Any]] = [
            {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": id}]},
            {"role": "tool", "content": "r", "tool_call_id": id},
        ]
        called, result = ChatTemplate(source, {}).render(Chat(said)).split(";")
        short = called.removeprefix("[assistant]")
        assert result.endswith(f"[tool]{short}"), "the result names its call"
        assert len(short) == 9 and short.isalnum() and (short == id) is kept
    assert ChatTemplate(OBJECTS + "{{ messages[1].tool_calls[0].id }}", {}).render(Chat(SAID)).endswith("c"), "as given"


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    broken = {**CALL, "function": {"name": "f", "arguments": "{broken"}}
    said = [{"role": "assistant", "content": "", "tool_calls": [broken]}]
    assert ChatTemplate(PIECES, {}).render(Chat(said)) == "[assistant]f:{broken"


def test_chats_with_tools_may_have_a_template_of_their_own() -> None:
    template = ChatTemplate("plain", {}, "tools: {{ tools[0].function.name }}")
    assert template.render(Chat(SAID)) == "plain"
    assert template.render(Chat(SAID, [{"type": "function", "function": {"name": "f"}}])) == "tools: f"
