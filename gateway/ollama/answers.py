"""Defines the answers of Ollama's API: lines of a stream, whole answers, and descriptions of models."""

from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.ollama.schemas import OllamaToolCall


class OllamaAnswerMessage(Struct, kw_only=True):
    """The assistant's message: all of it, or what a line of a stream adds to it."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class OllamaLine(Struct, kw_only=True):
    """What all lines of a stream have; the last one is `done`, and has counts. Times are in ns."""

    model: str
    created_at: str  # RFC 3339
    done: bool = False
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaChatAnswer(OllamaLine, kw_only=True):
    """An answer of /api/chat: all of it, or a line of its stream."""

    message: OllamaAnswerMessage


class OllamaGenerated(OllamaLine, kw_only=True):
    """An answer of /api/generate: all of it, or a line of its stream."""

    response: str = ""
    thinking: str | UnsetType = UNSET


class OllamaDetails(Struct, kw_only=True):
    """A model's kind; empty texts are unknown."""

    family: str
    families: list[str]
    parent_model: str = ""
    format: str = ""
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(Struct, kw_only=True):
    """A model in a list. Its size is unknown to the gateway, and its digest is of its name and source."""

    name: str
    model: str
    modified_at: str
    digest: str
    details: OllamaDetails
    size: int = 0


class OllamaLoadedModel(Struct, kw_only=True):
    """A model that is in memory, as served models always are."""

    name: str
    model: str
    digest: str
    details: OllamaDetails
    context_length: int
    expires_at: str
    size: int = 0
    size_vram: int = 0


class OllamaModels(Struct, kw_only=True):
    """Lists the model and its adapters."""

    models: list[OllamaModel]


class OllamaLoadedModels(Struct, kw_only=True):
    """Lists the models in memory."""

    models: list[OllamaLoadedModel]


class OllamaEmbedded(Struct, kw_only=True):
    """The vectors of all inputs, in their order."""

    model: str
    embeddings: list[list[float]]
    total_duration: int = 0  # ns
    load_duration: int = 0
    prompt_eval_count: int = 0


class OllamaEmbedding(Struct, kw_only=True):
    """The vector of one text."""

    embedding: list[float]


class OllamaShown(Struct, kw_only=True):
    """Describes a model."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(Struct, kw_only=True):
    """The version of Ollama whose API this is."""

    version: str


def rfc3339(seconds: float) -> str:
    """Returns a time, in s since 1970, as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
