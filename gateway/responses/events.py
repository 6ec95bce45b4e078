"""Defines the answers of the Responses API, and the events that a stream of one consists of."""

from collections.abc import Callable
from typing import Literal, get_args

from msgspec import Struct

from gateway.responses.items import (
    Item,
    OutputItem,
    OutputText,
    ReasoningText,
    TextLogprob,
)
from gateway.responses.schemas import ChosenFunction, FunctionTool, ReasoningConfig, TextConfig
from gateway.shaping.tagged_events import event_encoder

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseError(Struct, frozen=True, kw_only=True):
    """Says why a response has failed."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    """Says why a response is not complete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseInputDetails(Struct, frozen=True, kw_only=True):
    """Says how much of a prompt a prefix cache had."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ResponseOutputDetails(Struct, frozen=True, kw_only=True):
    """Says how many tokens of an answer were thoughts."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """Counts tokens."""

    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
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
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
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


class ResponseDeleted(Struct, frozen=True, kw_only=True):
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


class NumberedEvent(Struct, kw_only=True, tag_field="type"):
    """Is an event of a stream; events are numbered from 0."""

    sequence_number: int = 0


class ResponseEvent(NumberedEvent, kw_only=True):
    """Holds the response as it is at that moment."""

    response: ResponseAnswer


class ResponseCreated(ResponseEvent, kw_only=True, tag="response.created"):
    """Begins a stream."""


class ResponseBegun(ResponseEvent, kw_only=True, tag="response.in_progress"):
    """Says that it was begun."""


class ResponseCompleted(ResponseEvent, kw_only=True, tag="response.completed"):
    """Ends a stream."""


class ResponseIncomplete(ResponseEvent, kw_only=True, tag="response.incomplete"):
    """Ends a stream whose answer was cut off."""


class ResponseFailed(ResponseEvent, kw_only=True, tag="response.failed"):
    """Ends a stream that has failed."""


class ItemAdded(NumberedEvent, kw_only=True, tag="response.output_item.added"):
    """Begins an item, which is empty yet."""

    output_index: int
    item: OutputItem


class ItemDone(NumberedEvent, kw_only=True, tag="response.output_item.done"):
    """Ends an item."""

    output_index: int
    item: OutputItem


class ItemEvent(NumberedEvent, kw_only=True):
    """Is about something in an item."""

    output_index: int
    item_id: str


class PartEvent(ItemEvent, kw_only=True):
    """Is about a part of an item, of which there is one."""

    content_index: int = 0


class PartAdded(PartEvent, kw_only=True, tag="response.content_part.added"):
    """Begins a part, which is empty yet."""

    part: OutputText | ReasoningText


class PartDone(PartEvent, kw_only=True, tag="response.content_part.done"):
    """Ends a part."""

    part: OutputText | ReasoningText


class OutputTextDelta(PartEvent, kw_only=True, tag="response.output_text.delta"):
    """Goes on with a text."""

    delta: str
    logprobs: list[TextLogprob] = []


class OutputTextDone(PartEvent, kw_only=True, tag="response.output_text.done"):
    """Ends a text."""

    text: str
    logprobs: list[TextLogprob] = []


class ReasoningDelta(PartEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """Goes on with thoughts."""

    delta: str


class ReasoningDone(PartEvent, kw_only=True, tag="response.reasoning_text.done"):
    """Ends thoughts."""

    text: str


class ArgumentsDelta(ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    """Goes on with the arguments of a call."""

    delta: str


class ArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """Ends the arguments of a call."""

    name: str
    arguments: str


Event = (
    ResponseCreated
    | ResponseBegun
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)


encoded: Callable[[Event], bytes] = event_encoder(get_args(Event))
