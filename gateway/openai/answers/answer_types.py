"""Describes OpenAI's answers as types, for /openapi.json and for tests: every field that an answer may have.

A field that may be left out is `UNSET` there.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

Finish = Literal["stop", "length", "tool_calls", "function_call"]


class PromptDetails(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says how many tokens of a prompt a prefix cache had."""

    cached_tokens: int


class OutputDetails(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says how many tokens of an answer were thoughts."""

    reasoning_tokens: int


class Usage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: OutputDetails | UnsetType = UNSET


class AnswerMetrics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the times that load tools ask for."""

    queue_time_ms: float
    time_to_first_token_ms: float


class Logprob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says how likely a token was."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Logprob, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says how likely a token of the answer was, and its alternatives."""

    top_logprobs: list[Logprob]


class ChatLogprobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the log-probabilities of a choice's tokens."""

    content: list[TokenLogprob] | None
    refusal: None = None


class PromptLogprob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says how likely a token was at its place in the prompt, as vLLM does."""

    logprob: float
    rank: int
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id


class AnswerFunction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names the function that is called, and its arguments as JSON."""

    name: str
    arguments: str


class AnswerCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the call of a tool."""

    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what the model has said."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET
    function_call: AnswerFunction | UnsetType = UNSET


class ChatChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds one answer to a chat."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Head(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what every answer and chunk begins with."""

    id: str
    created: int  # s since 1970
    model: str
    system_fingerprint: None


class ChatCompletion(Head, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Is the answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    metrics: AnswerMetrics
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class DeltaFunction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the name of a function that is called, or the next piece of its arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class DeltaCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begins the call of a tool, or goes on with it."""

    index: int
    function: DeltaFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what is new."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[DeltaCall] | UnsetType = UNSET
    function_call: DeltaFunction | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what is new of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Head, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Is one event of a chat's stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: AnswerMetrics | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionLogprobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the log-probabilities of a completion's tokens, a list for each thing."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds one completion, or what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Head, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Is the answer of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage
    metrics: AnswerMetrics


class CompletionChunk(Head, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Is one event of a completion's stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: AnswerMetrics | UnsetType = UNSET
