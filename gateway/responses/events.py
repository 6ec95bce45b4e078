"""Defines the answers of the Responses API, and the events that a stream of one consists of."""

from typing import Literal, get_args

import msgspec
from msgspec import Struct

from gateway.responses.items import (
    Item,
    Logprob,
    OutputItem,
    OutputText,
    ReasoningText,
)
from gateway.responses.schemas import ChosenFunction, FunctionTool, ReasoningConfig, TextConfig

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class Failure(Struct, frozen=True, kw_only=True):
    """Says why a response has failed."""

    code: str
    message: str


class Incomplete(Struct, frozen=True, kw_only=True):
    """Says why a response is not complete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class InputDetails(Struct, frozen=True, kw_only=True):
    """Says how much of a prompt a prefix cache had."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct, frozen=True, kw_only=True):
    """Says how many tokens of an answer were thoughts."""

    reasoning_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    """Counts tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseAnswer(Struct, frozen=True, kw_only=True):
    """Holds a response, as it is or as it will be."""

    id: str
    created_at: int
    model: str
    status: ResponseStatus
    output: list[OutputItem]
    temperature: float
    top_p: float
    store: bool
    tools: list[FunctionTool]
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction
    parallel_tool_calls: bool
    text: TextConfig
    reasoning: ReasoningConfig
    completed_at: int | None = None
    error: Failure | None = None
    incomplete_details: Incomplete | None = None
    usage: Usage | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    top_logprobs: int = 0
    user: str | None = None
    background: Literal[False] = False
    service_tier: Literal["default"] = "default"
    truncation: Literal["disabled"] = "disabled"
    object: Literal["response"] = "response"


class Deleted(Struct, frozen=True, kw_only=True):
    """Says that a response is stored no longer."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(Struct, frozen=True, kw_only=True):
    """Says how many tokens a prompt has."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class ItemList(Struct, frozen=True, kw_only=True):
    """Lists what a response answers."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class Numbered(Struct, kw_only=True, tag_field="type"):
    """Is an event of a stream; events are numbered from 0."""

    sequence_number: int = 0


class Whole(Numbered, kw_only=True):
    """Holds the response as it is at that moment."""

    response: ResponseAnswer


class Created(Whole, kw_only=True, tag="response.created"):
    """Begins a stream."""


class InProgress(Whole, kw_only=True, tag="response.in_progress"):
    """Says that it was begun."""


class Completed(Whole, kw_only=True, tag="response.completed"):
    """Ends a stream."""


class EndedEarly(Whole, kw_only=True, tag="response.incomplete"):
    """Ends a stream whose answer was cut off."""


class Failed(Whole, kw_only=True, tag="response.failed"):
    """Ends a stream that has failed."""


class ItemAdded(Numbered, kw_only=True, tag="response.output_item.added"):
    """Begins an item, which is empty yet."""

    output_index: int
    item: OutputItem


class ItemDone(Numbered, kw_only=True, tag="response.output_item.done"):
    """Ends an item."""

    output_index: int
    item: OutputItem


class InItem(Numbered, kw_only=True):
    """Is about something in an item."""

    output_index: int
    item_id: str


class InPart(InItem, kw_only=True):
    """Is about a part of an item, of which there is one."""

    content_index: int = 0


class PartAdded(InPart, kw_only=True, tag="response.content_part.added"):
    """Begins a part, which is empty yet."""

    part: OutputText | ReasoningText


class PartDone(InPart, kw_only=True, tag="response.content_part.done"):
    """Ends a part."""

    part: OutputText | ReasoningText


class TextDelta(InPart, kw_only=True, tag="response.output_text.delta"):
    """Goes on with a text."""

    delta: str
    logprobs: list[Logprob] = []


class TextDone(InPart, kw_only=True, tag="response.output_text.done"):
    """Ends a text."""

    text: str
    logprobs: list[Logprob] = []


class ReasoningDelta(InPart, kw_only=True, tag="response.reasoning_text.delta"):
    """Goes on with thoughts."""

    delta: str


class ReasoningDone(InPart, kw_only=True, tag="response.reasoning_text.done"):
    """Ends thoughts."""

    text: str


class ArgumentsDelta(InItem, kw_only=True, tag="response.function_call_arguments.delta"):
    """Goes on with the arguments of a call."""

    delta: str


class ArgumentsDone(InItem, kw_only=True, tag="response.function_call_arguments.done"):
    """Ends the arguments of a call."""

    name: str
    arguments: str


Event = (
    Created
    | InProgress
    | Completed
    | EndedEarly
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)


_HEADS = {kind: f"event: {kind.__struct_config__.tag}\ndata: ".encode() for kind in get_args(Event)}
_encode = msgspec.json.Encoder().encode


def encoded(event: Event) -> bytes:
    """Returns an event as one server-sent event of its name."""
    return b"%s%s\n\n" % (_HEADS[type(event)], _encode(event))
