"""Defines the bodies of Ollama's API, as far as a text model supports them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.openai.bodies.formats import JSONSchema
from gateway.openai.bodies.messages import MAX_MESSAGES
from gateway.openai.bodies.parameters import ANY_VALUE, ONLY_EMPTY, NeutralValues, only
from gateway.openai.bodies.schemas import MAX_STOPS, Penalty, StopText
from gateway.openai.bodies.tools import MAX_TOOLS, Function

MAX_INPUTS = 2048  # texts of one request
Name = Annotated[str, Meta(max_length=256)]
OllamaStops = Annotated[list[StopText], Meta(max_length=MAX_STOPS)]

NEUTRAL_OPTIONS: Mapping[str, NeutralValues] = {
    **{
        name: ANY_VALUE  # how Ollama would load a model, which is loaded here already
        for name in (
            "num_ctx",
            "num_keep",
            "num_batch",
            "num_gpu",
            "main_gpu",
            "num_thread",
            "numa",
            "low_vram",
            "f16_kv",
            "use_mmap",
            "use_mlock",
            "vocab_only",
            "logits_all",
            "embedding_only",
            "mirostat_tau",  # of a sampler that is off
            "mirostat_eta",
        )
    },
    "repeat_last_n": only(-1),  # penalties count the whole prompt and answer
    "penalize_newline": only(True),
    "typical_p": only(1),
    "tfs_z": only(1),
    "mirostat": only(0),
}
NEUTRAL_FIELDS: Mapping[str, NeutralValues] = {
    "keep_alive": ANY_VALUE,  # the model stays loaded
    "images": ONLY_EMPTY,
    "logprobs": only(False),
    "top_logprobs": only(0),
    "shift": only(False, True),
}
NEUTRAL_EMBED_FIELDS: Mapping[str, NeutralValues] = {
    "keep_alive": ANY_VALUE,  # the model stays loaded
    "options": ANY_VALUE,  # a vector does not depend on how tokens are sampled
}
NEUTRAL_GENERATE_FIELDS: Mapping[str, NeutralValues] = {
    **NEUTRAL_FIELDS,
    "template": ONLY_EMPTY,  # a template is code
    "context": ONLY_EMPTY,  # /api/chat takes a conversation
}
"""Unimplemented fields, each with the values that have no effect."""


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are sampled, and where an answer ends."""

    num_predict: Annotated[int, Meta(ge=-2)] | None = None  # below 0: the rest of the context
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: StopText | OllamaStops | None = None


class OllamaFunctionCall(Struct, frozen=True, kw_only=True):
    name: Name
    arguments: dict[str, Any]


class OllamaToolCall(Struct, frozen=True, kw_only=True):
    """A call of a tool, in an earlier turn and in an answer."""

    function: OllamaFunctionCall
    id: Name | None = None


class OllamaMessage(Struct, frozen=True, kw_only=True):
    """A message of a chat. Unknown fields have no effect."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_name: Name | None = None
    tool_call_id: Name | None = None


class OllamaTool(Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    function: Function
    type: Literal["function"] = "function"


class OllamaRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of both chats and single prompts."""

    model: str
    stream: bool | None = None  # true by default
    format: JSONSchema | Literal["json", ""] | None = None
    options: Options | None = None
    think: bool | Literal["low", "medium", "high"] | None = None


class OllamaChatRequest(OllamaRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /api/chat."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=MAX_MESSAGES)] = []  # empty: loads the model
    tools: Annotated[list[OllamaTool], Meta(max_length=MAX_TOOLS)] | None = None
    truncate: bool | None = None  # false: a conversation beyond the context is refused, not cut


class OllamaGenerateRequest(OllamaRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /api/generate."""

    prompt: str = ""  # empty: loads the model
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None  # the prompt is a text, and not the user's message
    truncate: bool | None = None


class OllamaEmbedRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /api/embed."""

    model: str
    input: str | Annotated[list[str], Meta(max_length=MAX_INPUTS)]
    truncate: bool | None = None  # false: a text longer than the model takes is refused, not cut
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class OllamaEmbeddingRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /api/embeddings, which /api/embed has replaced."""

    model: str
    prompt: str = ""  # empty: loads the model


class OllamaShowRequest(Struct, frozen=True, kw_only=True):
    """Body of /api/show."""

    model: str = ""
    name: str = ""  # older name of `model`
