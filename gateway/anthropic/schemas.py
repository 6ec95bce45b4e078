"""Defines the bodies of Anthropic's Messages API, as far as a text model supports them.

Fields of blocks and tools that have no effect here, such as `cache_control`, are ignored, since its clients send them.
Unknown fields of a body are refused by name, as Anthropic does.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.openai.bodies.messages import MAX_MESSAGES
from gateway.openai.bodies.schemas import MAX_STOPS, StopText
from gateway.openai.bodies.tools import MAX_TOOLS

Id = Annotated[str, Meta(max_length=256)]
ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class TextBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class PlainBlock(Struct, frozen=True, kw_only=True):
    """Text, where no other type of block is allowed."""

    text: str
    type: Literal["text"] = "text"


class ThinkingBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """Thoughts of the model in an earlier turn."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="redacted_thinking"):
    """Encrypted thoughts, which only Anthropic can read; they are dropped."""

    data: str


class ToolUseBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool in an earlier turn."""

    id: Id
    name: ToolName
    input: dict[str, Any]


class ToolResultBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_result"):
    """The result of a call."""

    tool_use_id: Id
    content: str | list[PlainBlock] | None = None
    is_error: bool | None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class AnthropicMessage(Struct, frozen=True, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(Struct, frozen=True, kw_only=True):
    """A tool that the client runs. Anthropic's own tools have other types, and are refused."""

    name: ToolName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None


class ChooseAny(Struct, frozen=True, kw_only=True, tag_field="type", tag="any"):
    """The answer must call a tool."""

    disable_parallel_tool_use: bool | None = None


class ChooseAuto(Struct, frozen=True, kw_only=True, tag_field="type", tag="auto"):
    """The model decides whether to call a tool."""

    disable_parallel_tool_use: bool | None = None


class ChooseTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool"):
    """The answer must call this tool."""

    name: ToolName
    disable_parallel_tool_use: bool | None = None


class ChooseNone(Struct, frozen=True, kw_only=True, tag_field="type", tag="none"):
    """The answer must not call a tool."""

    disable_parallel_tool_use: bool | None = None


class ThinkingEnabled(Struct, frozen=True, kw_only=True, tag_field="type", tag="enabled"):
    """The model thinks before it answers. The budget is the budget of the whole answer."""

    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class ThinkingAdaptive(Struct, frozen=True, kw_only=True, tag_field="type", tag="adaptive"):
    """The model may think before it answers."""

    display: Literal["summarized", "omitted"] | None = None


class ThinkingBetweenTools(Struct, frozen=True, kw_only=True, tag_field="type", tag="between_tools"):
    """The model may think, also after tool results."""


class ThinkingDisabled(Struct, frozen=True, kw_only=True, tag_field="type", tag="disabled"):
    """The model answers at once, if its chat template supports that."""


class JSONOutput(Struct, frozen=True, kw_only=True):
    """The answer is JSON that fits a schema."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True, kw_only=True):
    """The form of the answer, and how much the model thinks."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JSONOutput | None = None


class CountTokensRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/messages/count_tokens: the parts of a prompt."""

    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: str
    system: str | list[PlainBlock] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ChooseAny | ChooseAuto | ChooseTool | ChooseNone | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingBetweenTools | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    output_format: JSONOutput | None = None  # older name of `output_config.format`
    # Without effect here: labels, and settings of Anthropic's cache, hosts and prices.
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    speed: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    betas: list[str] | None = None


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/messages."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: str | None = None
    diagnostics: dict[str, Any] | None = None
    thread: None = None
    container: Literal[""] | None = None
    mcp_servers: Annotated[list[Any], Meta(max_length=0)] | None = None
