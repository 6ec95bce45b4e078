"""Defines the answers of the Responses API, and the events of a stream."""

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
from gateway.responses.schemas import (
    AllowedFunctions,
    ChosenCustom,
    ChosenFunction,
    CustomClientTool,
    FunctionTool,
    ReasoningConfig,
    TextConfig,
)
from gateway.shaping.tagged_events import event_encoder

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseError(Struct, frozen=True, kw_only=True):
    """Why a response has failed."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseInputDetails(Struct, frozen=True, kw_only=True):
    """How many tokens of a prompt were in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ResponseOutputDetails(Struct, frozen=True, kw_only=True):
    """How many tokens of an answer were thoughts."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ResponseAnswer(Struct, frozen=True, kw_only=True):
    """A response, finished or in progress."""

    id: str
    created_at: int
    model: str
    status: ResponseStatus
    output: list[OutputItem]
    temperature: float
    top_p: float
    store: bool
    tools: list[FunctionTool | CustomClientTool]
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | ChosenCustom | AllowedFunctions
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
    truncation: Literal["auto", "disabled"] = "disabled"
    object: Literal["response"] = "response"


class ResponseDeleted(Struct, frozen=True, kw_only=True):
    """Confirms that a response is no longer stored."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(Struct, frozen=True, kw_only=True):
    """Number of tokens of a prompt."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class ItemList(Struct, frozen=True, kw_only=True):
    """A page of a response's input items."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class NumberedEvent(Struct, kw_only=True, tag_field="type"):
    """An event of a stream. Events are numbered from 0."""

    sequence_number: int = 0


class ResponseEvent(NumberedEvent, kw_only=True):
    """An event that carries the response in its current state."""

    response: ResponseAnswer


class ResponseCreated(ResponseEvent, kw_only=True, tag="response.created"):
    """First event of a stream."""


class ResponseBegun(ResponseEvent, kw_only=True, tag="response.in_progress"):
    """Second event of a stream."""


class ResponseCompleted(ResponseEvent, kw_only=True, tag="response.completed"):
    """Last event of a stream."""


class ResponseIncomplete(ResponseEvent, kw_only=True, tag="response.incomplete"):
    """Last event of a stream whose answer was cut off."""


class ResponseFailed(ResponseEvent, kw_only=True, tag="response.failed"):
    """Last event of a failed stream."""


class ItemAdded(NumberedEvent, kw_only=True, tag="response.output_item.added"):
    """Begins an empty item."""

    output_index: int
    item: OutputItem


class ItemDone(NumberedEvent, kw_only=True, tag="response.output_item.done"):
    """Ends an item."""

    output_index: int
    item: OutputItem


class ItemEvent(NumberedEvent, kw_only=True):
    """An event inside an item."""

    output_index: int
    item_id: str


class PartEvent(ItemEvent, kw_only=True):
    """An event inside an item's only content part."""

    content_index: int = 0


class PartAdded(PartEvent, kw_only=True, tag="response.content_part.added"):
    """Begins an empty content part."""

    part: OutputText | ReasoningText


class PartDone(PartEvent, kw_only=True, tag="response.content_part.done"):
    """Ends a content part."""

    part: OutputText | ReasoningText


class OutputTextDelta(PartEvent, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[TextLogprob] = []


class OutputTextDone(PartEvent, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[TextLogprob] = []


class ReasoningDelta(PartEvent, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(PartEvent, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class CustomInputDelta(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class CustomInputDone(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str


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
    | CustomInputDelta
    | CustomInputDone
)


encoded: Callable[[Event], bytes] = event_encoder(get_args(Event))
