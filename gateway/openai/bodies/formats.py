"""Defines how clients ask for a form of the answer, with the fields of OpenAI and of vLLM."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MAX_GRAMMAR_CHARS = 1 << 18  # of a regex or a grammar; the grammar made of it has its own limits
MAX_CHOICES = 1024

GrammarText = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choice = Annotated[str, Meta(min_length=1, max_length=4096)]
Choices = Annotated[list[Choice], Meta(min_length=1, max_length=MAX_CHOICES)]
JSONSchema = dict[str, Any] | bool


class TextFormat(Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """The answer is any text."""


class JSONObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """The answer is any JSON object."""


class NamedSchema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON schema with its name. It is always enforced, whether `strict` or not."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    schema: JSONSchema
    description: str | None = None
    strict: bool | None = None


class JSONSchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """The answer is JSON that fits a schema."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JSONObjectFormat | JSONSchemaFormat


class StructuredOutputs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A form as vLLM's clients ask for it: one of these fields. A schema may also be a string of JSON."""

    json: JSONSchema | str | None = None
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    disable_additional_properties: bool | None = None  # false: schemas stay open
    # Fields that vLLM's own client always sends.
    disable_fallback: Literal[False] | None = None
    disable_any_whitespace: Literal[False] | None = None
    whitespace_pattern: None = None
    structural_tag: None = None
