"""A model's format is the one whose parser reads the calls that its chat template writes."""

from collections.abc import Callable

import pytest

from gateway.output.answer_format import answer_format
from gateway.text.chat_template import ChatTemplate
from gateway.text.shown_tools import NOTHING_SHOWN, ShownTools

HEAD = "{{ tools | tojson if tools else '' }}{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
CALLS = "{% for call in m.tool_calls or [] %}CALL{% endfor %}"
BODY = "{% endfor %}"
NAMED = "{{ call.function.name }}({{ call.function.arguments | tojson }})"
JSON = '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
TAGGED = (
    "<function={{ call.function.name }}>{% for name, value in call.function.arguments | items %}"
    "<parameter={{ name }}>{{ value }}</parameter>{% endfor %}</function>"
)
ARRAY = "{{ '[' if loop.first else ', ' }}" + JSON + "{{ ']' if loop.last }}"


def shown(source: str) -> ShownTools:
    return ChatTemplate(source, {}).shown_tools()


def family(source: str, token_id: Callable[[str], int | None] = lambda text: None) -> str | None:
    found = answer_format(shown(source), token_id).tool_format
    return found and found.name


@pytest.mark.parametrize(
    ("call", "known"),
    [
        (f"<tool_call>{JSON}</tool_call>", "hermes"),
        (f"<tool_call>{NAMED}</tool_call>", None),  # another format behind Hermes' marker
        (f"<tools><tool_call>{NAMED}</tool_call>{JSON}</tools>", None),
        (f"{{{{ '<|tool_call|>' if loop.first }}}}{ARRAY}", "granite"),
        (f"{{{{ '<tool_call>' if 0 }}}}{{{{ '<|tool_call|>' if loop.first }}}}{ARRAY}", "granite"),
        (f"<tool_call>{TAGGED}</tool_call>", "qwen3_coder"),
        (f"<seed:tool_call>{TAGGED}</seed:tool_call>", "seed_oss"),
        (TAGGED, None),  # Qwen3-Coder's parser reads it, but no model here is held to it
        (f"{{{{ '<tool_calls>' if loop.first }}}}{ARRAY}{{{{ '</tool_calls>' if loop.last }}}}", "apriel"),
        (f"{{{{ '<tool_calls>' if loop.first }}}}{JSON}{{{{ '</tool_calls>' if loop.last }}}}", "minimax"),
    ],
)
def test_what_the_template_writes_decides_and_no_marker_in_it(call: str, known: str | None) -> None:
    source = HEAD + CALLS.replace("CALL", call) + BODY
    assert shown(source).takes
    assert family(source) == known


def test_a_template_that_leaves_calls_out_is_known_by_its_words_or_its_vocabulary() -> None:
    silent = "{{ 'Answer with <|tool_call|> and a list: ' + tools | tojson if tools else '' }}" + HEAD + BODY
    assert shown(silent).takes and shown(silent).calls is None
    assert family(silent) == "granite"
    assert family(HEAD + BODY) is None
    lfm2 = {"<|tool_call_start|>": 5, "<|tool_call_end|>": 6}
    assert family(HEAD + BODY, lfm2.get) == "lfm2"
    assert family(HEAD + BODY, {"<|python_tag|>": 5}.get) is None, "every Llama 3 has that token"


def test_one_call_is_enough_where_the_template_refuses_more() -> None:
    one = "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    calls = CALLS.replace("CALL", f"<tool_call>{JSON}</tool_call>")
    source = HEAD + one + calls + BODY
    found = shown(source).calls
    assert found is not None and len(found.arguments) == 1
    assert family(source) == "hermes"


def test_a_template_that_refuses_results_is_asked_without_them() -> None:
    refused = "{% if m.role == 'tool' %}{{ raise_exception('no results') }}{% endif %}"
    source = HEAD + refused + CALLS.replace("CALL", f"<tool_call>{JSON}</tool_call>") + BODY
    assert shown(source).calls is not None and family(source) == "hermes"


def test_tools_that_a_filter_picks_from_are_shown() -> None:
    assert shown(HEAD.replace("tools | tojson", "tools | map(attribute='function') | tojson") + BODY).takes


def test_a_template_that_leaves_tools_out_takes_none() -> None:
    source = "{% for m in messages %}{{ m.content or '' }}" + CALLS.replace("CALL", f"<tool_call>{JSON}</tool_call>")
    assert shown(source + BODY).calls is not None and not shown(source + BODY).takes
    assert family(source + BODY) is None
    assert answer_format(NOTHING_SHOWN, lambda text: None).tool_format is None
