"""Defines the bodies of /v1/chat/completions and /v1/completions: strict types that include every limit."""

from typing import Annotated, Literal, cast

from msgspec import Meta, Struct

from contracts.scores import MAX_TOP_LOGPROBS
from gateway.errors import conflict, invalid
from gateway.openai.bodies.formats import Choices, GrammarText, JSONSchema, ResponseFormat, StructuredOutputs
from gateway.openai.bodies.messages import Messages
from gateway.openai.bodies.tools import MAX_TOOLS, ChatTool, CustomTool, Function, FunctionChoice, ToolChoice

MAX_STOPS = 16  # stop strings of a request
MAX_STOP_IDS = 128
MAX_BIASES = 1024  # entries of `logit_bias`
MAX_BAD_WORDS = 128
MAX_ALLOWED_IDS = 16384  # entries of `allowed_token_ids`
MAX_PROMPTS = 128  # of one request
MIN_PRIORITY, MAX_PRIORITY = -(1 << 31), (1 << 31) - 1

TEMPLATE_OPTIONS = frozenset(
    {
        "enable_thinking",
        "thinking",
        "thinking_mode",
        "thinking_budget",
        "reasoning_budget",
        "reasoning_effort",
        "reasoning_strategy",
        "clear_thinking",
        "preserve_thinking",
        "model_identity",
        "date_string",
        "tools_in_user_message",
    }
)
"""Options that clients may pass to a chat template. No template uses these names for anything else."""

StopText = Annotated[str, Meta(min_length=1, max_length=256)]
Label = Annotated[str, Meta(max_length=512)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Top = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
Biases = Annotated[
    dict[str, Annotated[float, Meta(ge=-100, le=100)]],
    Meta(max_length=MAX_BIASES, extra_json_schema={"propertyNames": {"pattern": "^[0-9]{1,10}$"}}),
]
KeywordText = Annotated[str, Meta(max_length=1024)]
TemplateOptions = Annotated[
    dict[str, bool | int | float | KeywordText | None],
    Meta(extra_json_schema={"propertyNames": {"enum": sorted(TEMPLATE_OPTIONS)}}),
]


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Additional contents of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # current usage in every chunk
    include_obfuscation: Literal[False] | None = None


class SamplingFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of both chats and completions."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None  # 0 only beside `echo`
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Biases | None = None
    allowed_token_ids: Annotated[list[int], Meta(min_length=1, max_length=MAX_ALLOWED_IDS)] | None = None
    bad_words: Annotated[list[StopText], Meta(max_length=MAX_BAD_WORDS)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=MAX_STOP_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    prompt_logprobs: Top | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JSONSchema | str | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None
    # SGLang's and llama.cpp's names of the same constraints.
    json_schema: JSONSchema | str | None = None
    regex: GrammarText | None = None
    ebnf: GrammarText | None = None
    grammar: GrammarText | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None  # -1: as many as the context has room for
    priority: Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    # Labels, without effect here.
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    store: bool | None = None
    metadata: Annotated[dict[str, Label], Meta(max_length=16)] | None = None

    def stops(self) -> tuple[str, ...]:
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop or ())

    def closes_objects(self) -> bool:
        return self.structured_outputs is None or self.structured_outputs.disable_additional_properties is not False

    def limit(self) -> int | None:
        """Returns the limit of output tokens, from either field, or None. Raises `APIError` if they differ."""
        both = {value for value in (self.max_tokens, self.max_completion_tokens) if value is not None}
        if len(both) > 1:
            raise conflict("max_tokens and max_completion_tokens differ; give one of them", "max_completion_tokens")
        return both.pop() if both else None


class ChatRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/chat/completions. Bodies of other APIs are translated into it."""

    messages: Messages
    tools: Annotated[list[ChatTool | CustomTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Function], Meta(max_length=MAX_TOOLS)] | None = None
    function_call: FunctionChoice | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    include_reasoning: bool | None = None  # false: the answer has no reasoning
    enable_thinking: bool | None = None  # as in `chat_template_kwargs`
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None  # false: the prompt ends after the last message
    continue_final_message: bool | None = None  # the answer continues the last message
    echo: bool | None = None  # the answer begins with the message that it continues
    verbosity: Literal["low", "medium", "high"] | None = None  # a label: templates do not know it


class CompletionRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/completions. A prompt is text or token ids; in a list, each prompt has `n` choices."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Top | None = None

    def only_echo(self) -> bool:
        """Returns whether the client wants only the prompt with its scores, and no new token."""
        return bool(self.echo) and self.max_tokens == 0

    def prompts(self) -> list[str | list[int]]:
        """Returns the prompts, each as text or as token ids. Raises `APIError` for a mixed list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = set(map(type, self.prompt))
        if len(kinds) > 1:
            raise invalid("prompt: a list holds only texts, only token ids, or only lists of token ids", "prompt")
        return [cast(list[int], self.prompt)] if int in kinds else cast(list[str | list[int]], self.prompt)
