"""Defines the items of a conversation, as the Responses API takes, stores and returns them.

Fields without effect here are ignored, since clients send back whatever they got from this or another server.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.openai.bodies.tools import MAX_ARGUMENT_CHARS, ToolName

Id = Annotated[str, Meta(min_length=1, max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    """Text of the client."""

    text: str


class AlternativeLogprob(Struct, frozen=True, kw_only=True):
    """Log-probability of an alternative token."""

    token: str
    bytes: list[int]
    logprob: float


class TextLogprob(AlternativeLogprob, frozen=True, kw_only=True):
    """Log-probability of a token of the answer, with its likeliest alternatives."""

    top_logprobs: list[AlternativeLogprob]


class OutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[TextLogprob] | None = None


class RefusalText(Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """Text with which a model refused to answer in an earlier turn."""

    refusal: str


class ReasoningText(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """Thoughts of the model."""

    text: str


class SummaryText(Struct, frozen=True, kw_only=True, tag_field="type", tag="summary_text"):
    """A summary of thoughts, from another server."""

    text: str


ContentPart = InputText | OutputText | RefusalText


class MessageItem(Struct, kw_only=True, tag_field="type", tag="message"):
    """A message of the client or of the model."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]
    id: Id | None = None
    status: Status | None = None


class FunctionCallItem(Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a tool by the model."""

    call_id: Id
    name: ToolName
    arguments: Annotated[str, Meta(max_length=MAX_ARGUMENT_CHARS)]
    id: Id | None = None
    status: Status | None = None


class FunctionOutputItem(Struct, kw_only=True, tag_field="type", tag="function_call_output"):
    """The result of a call."""

    call_id: Id
    output: str | list[InputText | OutputText]
    id: Id | None = None
    status: Status | None = None


class CustomCallItem(Struct, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool by the model."""

    call_id: Id
    name: ToolName
    input: Annotated[str, Meta(max_length=MAX_ARGUMENT_CHARS)]
    id: Id | None = None
    status: Status | None = None


class CustomOutputItem(Struct, kw_only=True, tag_field="type", tag="custom_tool_call_output"):
    """The result of a call of a custom tool."""

    call_id: Id
    output: str | list[InputText | OutputText]
    id: Id | None = None
    status: Status | None = None


class ReasoningItem(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """Thoughts of the model. Encrypted thoughts of other servers are dropped."""

    id: Id | None = None
    summary: list[SummaryText | ReasoningText] = []
    content: list[ReasoningText | SummaryText] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


Item = MessageItem | FunctionCallItem | FunctionOutputItem | CustomCallItem | CustomOutputItem | ReasoningItem
OutputItem = MessageItem | FunctionCallItem | CustomCallItem | ReasoningItem
