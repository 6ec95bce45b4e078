"""Parses the body of a response. Errors name the content that a text model cannot take."""

from collections.abc import Mapping
from typing import Any, get_args

from gateway.errors import invalid
from gateway.openai.bodies.parameters import implemented
from gateway.openai.bodies.parsing import check_kinds, converted, json_object
from gateway.openai.bodies.unknown_fields import REFUSED, UnknownFields
from gateway.responses.items import ContentPart, Item
from gateway.responses.schemas import UNIMPLEMENTED_PARAMETERS, ResponsesRequest

ITEM_TYPES = {kind.__struct_config__.tag for kind in get_args(Item)}
PART_TYPES = {kind.__struct_config__.tag for kind in get_args(ContentPart)}


def parse_response(body: bytes, unknown: UnknownFields = REFUSED) -> ResponsesRequest:
    """Returns the body of a response. Raises `APIError` if anything is wrong with it."""
    fields = implemented(json_object(body), UNIMPLEMENTED_PARAMETERS)
    if isinstance(fields.get("input"), list):
        fields["input"] = [_item(item, f"input[{number}]") for number, item in enumerate(fields["input"])]
    check_kinds(fields.get("tools"), "tools", {"function", "custom"}, "a tool")
    choice = fields.get("tool_choice")
    check_kinds([choice], "tool_choice", {"function", "custom", "allowed_tools"}, "a choice")
    return converted(fields, ResponsesRequest, unknown)


def _item(item: Any, where: str) -> Any:
    """Returns an item with its type, which messages may omit. Raises `APIError` for unsupported types."""
    if not isinstance(item, Mapping):
        return item
    if "type" not in item and "role" in item:
        item = {**item, "type": "message"}
    kind = item.get("type")
    if isinstance(kind, str) and kind not in ITEM_TYPES:
        more = "; give the item itself, or previous_response_id" if kind == "item_reference" else ""
        raise invalid(f"{where}.type: items of the type {kind[:64]!r} are not supported{more}", f"{where}.type")
    for field in ("content", "output"):
        if kind in ("message", "function_call_output", "custom_tool_call_output"):
            check_kinds(item.get(field), f"{where}.{field}", PART_TYPES, "a part")
    return item
