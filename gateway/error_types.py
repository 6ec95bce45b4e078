"""Describes the bodies of errors as types, for /openapi.json and for tests."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.errors import API


class Details(Struct, frozen=True, forbid_unknown_fields=True):
    """An error: `message` for people, `code` and `param` for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of every error of OpenAI's interface and of the server's own."""

    error: Details


class AnthropicCode(Struct, frozen=True, forbid_unknown_fields=True):
    """The error's code, as in OpenAI's shape."""

    error_code: str


class AnthropicDetails(Struct, frozen=True, forbid_unknown_fields=True):
    """An error in the shape of Anthropic's API."""

    type: str
    message: str
    details: AnthropicCode | UnsetType = UNSET


class AnthropicErrorAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of every error of Anthropic's interface."""

    type: Literal["error"]
    error: AnthropicDetails
    request_id: str


class OllamaErrorAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of every error of Ollama's interface."""

    error: str
    code: str | None


ERROR_TYPES: Mapping[API, Any] = {
    "openai": ErrorAnswer,
    "anthropic": AnthropicErrorAnswer,
    "ollama": OllamaErrorAnswer,
}
