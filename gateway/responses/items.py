"""Defines the items of a conversation, as the Responses API takes, stores and gives them.

Fields that change nothing here are ignored, since clients send back whatever they were given, by us or by others.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.openai.bodies.tools import MAX_ARGUMENT_CHARS, ToolName

Id = Annotated[str, Meta(min_length=1, max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    """Holds text from the client."""

    text: str


class AlternativeLogprob(Struct, frozen=True, kw_only=True):
    """Says how likely another token would have been."""

    token: str
    bytes: list[int]
    logprob: float


class TextLogprob(AlternativeLogprob, frozen=True, kw_only=True):
    """Says how likely a token of the answer was, and which would have been the likeliest."""

    top_logprobs: list[AlternativeLogprob]


class OutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    """Holds text of an answer."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TextLogprob] | None = None


class RefusalText(Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """Holds text by which a model has refused to answer, in an earlier turn."""

    refusal: str


class ReasoningText(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """Holds what the model has thought."""

    text: str


class SummaryText(Struct, frozen=True, kw_only=True, tag_field="type", tag="summary_text"):
    """Holds a summary of thoughts, which other servers make."""

    text: str


ContentPart = InputText | OutputText | RefusalText


class MessageItem(Struct, kw_only=True, tag_field="type", tag="message"):
    """Holds a message of the client or of the model."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]
    id: Id | None = None
    status: Status | None = None


class FunctionCallItem(Struct, kw_only=True, tag_field="type", tag="function_call"):
    """Holds a call of a tool by the model."""

    call_id: Id
    name: ToolName
    arguments: Annotated[str, Meta(max_length=MAX_ARGUMENT_CHARS)]
    id: Id | None = None
    status: Status | None = None


class FunctionOutputItem(Struct, kw_only=True, tag_field="type", tag="function_call_output"):
    """Holds what came of a call."""

    call_id: Id
    output: str | list[InputText | OutputText]
    id: Id | None = None
    status: Status | None = None


class ReasoningItem(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """Holds what the model has thought. What only another server can read is left out."""

    id: Id | None = None
    summary: list[SummaryText | ReasoningText] = []
    content: list[ReasoningText | SummaryText] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


Item = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
OutputItem = MessageItem | FunctionCallItem | ReasoningItem
