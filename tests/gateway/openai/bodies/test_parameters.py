"""Other servers' names of parameters mean the same as ours."""

from typing import Any

import pytest

from gateway.openai.bodies.parsing import chat_request
from gateway.openai.bodies.template_options import template_options

HI: Any = {"messages": [{"role": "user", "content": "Hi!"}]}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"repeat_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"n_predict": 7, "max_tokens": 7}, {"max_tokens": 7}),
        ({"n_predict": -1}, {}),
        ({"num_predict": 7}, {"max_tokens": 7}),
        ({"think": False}, {"enable_thinking": False}),
        ({"think": None, "typical_p": 1, "mirostat": 0, "num_ctx": 4096}, {}),
    ],
)
def test_aliases(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert chat_request({**HI, **theirs}) == chat_request({**HI, **ours})


def test_thinking_by_a_field_of_its_own() -> None:
    assert template_options(chat_request({**HI, "think": False})) == {"enable_thinking": False, "thinking": False}
    both = {"think": True, "chat_template_kwargs": {"enable_thinking": True, "thinking": False}}
    assert template_options(chat_request({**HI, **both})) == {"enable_thinking": True, "thinking": False}
