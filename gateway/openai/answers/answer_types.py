"""Defines OpenAI's answers as types, for /openapi.json and for tests, with every field that an answer may have.

Optional fields are `UNSET`.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

Finish = Literal["stop", "length", "tool_calls", "function_call"]


class PromptDetails(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many tokens of a prompt were in the prefix cache."""

    cached_tokens: int


class OutputDetails(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many tokens of an answer were thoughts."""

    reasoning_tokens: int


class Usage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: OutputDetails | UnsetType = UNSET


class AnswerMetrics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times that load generators read."""

    queue_time_ms: float
    time_to_first_token_ms: float


class Logprob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log-probability of a token."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Logprob, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log-probability of a token of the answer, with its likeliest alternatives."""

    top_logprobs: list[Logprob]


class ChatLogprobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log-probabilities of a choice's tokens."""

    content: list[TokenLogprob] | None
    refusal: None = None


class PromptLogprob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log-probability and rank of a prompt's token, as in vLLM."""

    logprob: float
    rank: int
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id


class AnswerFunction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: str


class AnswerCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET
    function_call: AnswerFunction | UnsetType = UNSET


class ChatChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Head(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first fields of every answer and chunk."""

    id: str
    created: int  # s since 1970
    model: str
    system_fingerprint: None


class ChatCompletion(Head, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    metrics: AnswerMetrics
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class DeltaFunction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A called function's name, or the next piece of its arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class DeltaCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The beginning or the next piece of a call."""

    index: int
    function: DeltaFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new part of an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[DeltaCall] | UnsetType = UNSET
    function_call: DeltaFunction | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Head, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a chat's stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: AnswerMetrics | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionLogprobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log-probabilities of a completion's tokens, as parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One completion, or the new part of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Head, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answer of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage
    metrics: AnswerMetrics


class CompletionStreamChunk(Head, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a completion's stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: AnswerMetrics | UnsetType = UNSET
