"""Arguments in Gemma's own writing keep to their schema where other formats leave that to JSON's grammar."""

import pytest

from gateway.output.formats.gemma4 import grammar
from gateway.output.tools import Tool, ToolUse
from tests.gateway.output.grammars import Vocabulary

TOOL = Tool(
    "paint",
    {
        "type": "object",
        "properties": {
            "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
            "color": {"enum": ["red", 7]},
            "at": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
            "else": {},
        },
    },
)


@pytest.mark.parametrize(
    ("arguments", "may"),
    [
        ("", True),
        ("sizes:[1]", True),
        ("sizes:[1,2]", True),
        ("sizes:[]", False),
        ("sizes:[1,2,3]", False),
        ('sizes:[<|"|>a<|"|>]', False),
        ('color:<|"|>red<|"|>', True),
        ('color:<|"|>blue<|"|>', False),
        ("at:{x:1.5}", True),
        ("at:{}", False),
        ('else:{a:[1,<|"|>b<|"|>,{}],b:null}', True),
        ("sizes:[1],at:{x:1}", True),
        ("at:{x:1},sizes:[1]", False),
    ],
)
def test_arguments_keep_to_their_schema(arguments: str, may: bool) -> None:
    words = Vocabulary(("<|tool_call>", "<tool_call|>", '<|"|>'), "special")
    text = f"<|tool_call>call:paint{{{arguments}}}<tool_call|>"
    found = words.accepted(grammar(ToolUse((TOOL,), must=True), words.token_id), text)
    assert (found == text) is may, found
