"""Defines the ways in which a client says what form an answer has to have: OpenAI's and vLLM's."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MAX_GRAMMAR_CHARS = 1 << 18  # characters of a regex or a grammar; what they become has limits of its own
MAX_CHOICES = 1024  # texts of which an answer may be one

GrammarText = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choice = Annotated[str, Meta(min_length=1, max_length=4096)]
Choices = Annotated[list[Choice], Meta(min_length=1, max_length=MAX_CHOICES)]
JSONSchema = dict[str, Any] | bool


class TextFormat(Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Asks for any text."""


class JSONObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """Asks for any JSON object."""


class NamedSchema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds a JSON schema with its name. It is always kept to, strict or not."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    schema: JSONSchema
    description: str | None = None
    strict: bool | None = None


class JSONSchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """Asks for JSON by a schema."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JSONObjectFormat | JSONSchemaFormat


class StructuredOutputs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for a form as vLLM's clients do: by one of these. A schema may be written as a text of JSON."""

    json: JSONSchema | str | None = None
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    disable_additional_properties: bool | None = None  # false: objects of the request's schemas are not closed
    # What vLLM's own client sends beside them.
    disable_fallback: Literal[False] | None = None
    disable_any_whitespace: Literal[False] | None = None
    whitespace_pattern: None = None
    structural_tag: None = None
