"""Parses the bodies of Ollama's API. Errors name the field that has no effect here."""

from collections.abc import Mapping
from typing import Any, TypeVar

from gateway.errors import invalid
from gateway.ollama.schemas import (
    NEUTRAL_EMBED_FIELDS,
    NEUTRAL_FIELDS,
    NEUTRAL_GENERATE_FIELDS,
    NEUTRAL_OPTIONS,
    OllamaChatRequest,
    OllamaEmbeddingRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaRequest,
    OllamaShowRequest,
)
from gateway.openai.bodies.parameters import NeutralValues, implemented
from gateway.openai.bodies.parsing import converted, json_object
from gateway.openai.bodies.unknown_fields import REFUSED, UnknownFields

Body = TypeVar("Body", bound=OllamaRequest)


def parse_ollama_chat(body: bytes, unknown: UnknownFields = REFUSED) -> OllamaChatRequest:
    """Returns the body of a chat. Raises `APIError` if anything is wrong with it."""
    fields = json_object(body)
    messages = fields.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict) and message.get("images"):
            name = f"messages[{number}].images"
            raise invalid(f"{name}: images are not supported, only text is", name, "unsupported_parameter")
    return _request(fields, OllamaChatRequest, NEUTRAL_FIELDS, unknown)


def parse_ollama_generate(body: bytes, unknown: UnknownFields = REFUSED) -> OllamaGenerateRequest:
    """Returns the body of a single prompt. Raises `APIError` if anything is wrong with it."""
    return _request(json_object(body), OllamaGenerateRequest, NEUTRAL_GENERATE_FIELDS, unknown)


def parse_ollama_embed(body: bytes, unknown: UnknownFields = REFUSED) -> OllamaEmbedRequest:
    """Returns the body of /api/embed. Raises `APIError` if anything is wrong with it."""
    return converted(implemented(json_object(body), NEUTRAL_EMBED_FIELDS), OllamaEmbedRequest, unknown)


def parse_ollama_embedding(body: bytes, unknown: UnknownFields = REFUSED) -> OllamaEmbeddingRequest:
    """Returns the body of /api/embeddings. Raises `APIError` if anything is wrong with it."""
    return converted(implemented(json_object(body), NEUTRAL_EMBED_FIELDS), OllamaEmbeddingRequest, unknown)


def parse_ollama_show(body: bytes, unknown: UnknownFields = REFUSED) -> OllamaShowRequest:
    """Returns the body of a question about a model. Raises `APIError` if anything is wrong with it."""
    return converted(json_object(body), OllamaShowRequest, unknown)


def _request(
    fields: Mapping[str, Any], kind: type[Body], neutral: Mapping[str, NeutralValues], unknown: UnknownFields
) -> Body:
    given = implemented(fields, neutral)
    if isinstance(given.get("options"), Mapping):
        given["options"] = implemented(given["options"], NEUTRAL_OPTIONS)
    return converted(given, kind, unknown)
