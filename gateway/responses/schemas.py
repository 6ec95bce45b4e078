"""Defines the body of the Responses API."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from contracts.scores import MAX_TOP_LOGPROBS
from gateway.openai.bodies.formats import JSONSchema
from gateway.openai.bodies.messages import MAX_MESSAGES
from gateway.openai.bodies.parameters import ONLY_NULL, NeutralValues, only
from gateway.openai.bodies.schemas import Label
from gateway.openai.bodies.tools import MAX_TOOLS, AnyText, InputRule, ToolName
from gateway.responses.items import Id, Item

LOGPROBS_INCLUDE = "message.output_text.logprobs"

UNIMPLEMENTED_PARAMETERS: Mapping[str, NeutralValues] = {
    "background": only(False),
    "conversation": ONLY_NULL,
    "prompt": ONLY_NULL,
    "context_management": only([]),
    "moderation": ONLY_NULL,
    "access_programs": only({}),
    "image": only({}),
}
"""Unimplemented parameters, each with the values that have no effect."""


class FunctionTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A function that the client runs. Other types of tools are refused by name."""

    name: ToolName
    parameters: dict[str, Any] | None = None  # a JSON schema; None: it takes none
    strict: bool | None = None
    description: str | None = None


class RuledInput(InputRule, frozen=True, kw_only=True, tag_field="type", tag="grammar"):
    """The input of a custom tool follows a rule."""


class CustomClientTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    """A tool that the client runs, whose input is a text."""

    name: ToolName
    description: str | None = None
    format: AnyText | RuledInput | None = None


class ChosenCustom(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    """The answer must call this custom tool."""

    name: ToolName


class ChosenFunction(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """The answer must call this function."""

    name: ToolName


class AllowedFunctions(Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Functions that the answer may call (`auto`) or must call (`required`); the prompt has all of them."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenFunction | ChosenCustom], Meta(min_length=1, max_length=MAX_TOOLS)]


class PlainTextFormat(Struct, frozen=True, tag_field="type", tag="text"):
    """The answer is any text."""


class AnyObject(Struct, frozen=True, tag_field="type", tag="json_object"):
    """The answer is any JSON object."""


class BySchema(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """The answer is JSON that fits a schema, whether `strict` or not."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    schema: JSONSchema
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer."""

    format: PlainTextFormat | AnyObject | BySchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # a label: templates do not know it


class ReasoningConfig(Struct, frozen=True, kw_only=True):
    """How much the model thinks. Thoughts are returned in full and never summarized."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesStreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/responses."""

    input: str | Annotated[list[Item], Meta(max_length=MAX_MESSAGES)]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: Id | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    tools: Annotated[list[FunctionTool | CustomClientTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | ChosenCustom | AllowedFunctions | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Annotated[list[str], Meta(max_length=16)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    truncation: Literal["auto", "disabled"] | None = None  # auto: the oldest turns beyond the context are left out
    # Without effect here: labels, and settings of other servers' tools, caches and prices.
    metadata: Annotated[dict[str, Label], Meta(max_length=16)] | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or LOGPROBS_INCLUDE in (self.include or ())
