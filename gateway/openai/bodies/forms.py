"""Finds the form that a body asks for. Fields of OpenAI, vLLM and other servers must agree."""

from contextlib import suppress

import msgspec

from gateway.errors import conflict
from gateway.grammar.forms import AnswerForm
from gateway.openai.bodies.formats import Choices, JSONObjectFormat, JSONSchema, JSONSchemaFormat, StructuredOutputs
from gateway.openai.bodies.schemas import SamplingFields


def form_of(body: SamplingFields) -> AnswerForm | None:
    """Returns the requested form, or None. Raises `APIError` for two different forms."""
    forms = _response_format(body) + _structured(body.structured_outputs or StructuredOutputs()) + _guided(body)
    forms += _of_other_servers(body)
    if not forms:
        return None
    first, *others = forms
    for other in others:
        if _meaning(other) != _meaning(first):
            message = f"{other.param}: {first.param} asks for another form of the answer; give one of them"
            raise conflict(message, other.param)
    return first._replace(closes=body.closes_objects())


def _meaning(form: AnswerForm) -> tuple[str, bytes]:
    """Returns a key that is equal for equal forms, whether a schema is a string or an object."""
    value = form.value
    if form.kind == "json_schema" and isinstance(value, str):
        with suppress(msgspec.DecodeError, RecursionError):  # invalid JSON is refused later, where it is read
            value = msgspec.json.decode(value)
    return form.kind, msgspec.json.encode(value)


def _response_format(body: SamplingFields) -> list[AnswerForm]:
    match body.response_format:
        case JSONObjectFormat():
            return [AnswerForm("json_object")]
        case JSONSchemaFormat(named):
            return [AnswerForm("json_schema", named.schema, "response_format.json_schema.schema")]
        case _:
            return []


def _structured(outputs: StructuredOutputs) -> list[AnswerForm]:
    forms = [AnswerForm("json_object", param="structured_outputs.json_object")] if outputs.json_object else []
    return forms + _forms_of("structured_outputs.", outputs.json, outputs.regex, outputs.choice, outputs.grammar)


def _guided(body: SamplingFields) -> list[AnswerForm]:
    return _forms_of("guided_", body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar)


def _of_other_servers(body: SamplingFields) -> list[AnswerForm]:
    forms = [
        None if body.json_schema is None else AnswerForm("json_schema", body.json_schema, "json_schema"),
        None if body.regex is None else AnswerForm("regex", body.regex, "regex"),
        None if body.ebnf is None else AnswerForm("grammar", body.ebnf, "ebnf"),
        None if body.grammar is None else AnswerForm("grammar", body.grammar, "grammar"),
    ]
    return [form for form in forms if form is not None]


def _forms_of(
    prefix: str, json: JSONSchema | str | None, regex: str | None, choice: Choices | None, grammar: str | None
) -> list[AnswerForm]:
    forms = [
        None if json is None else AnswerForm("json_schema", json, f"{prefix}json"),
        None if regex is None else AnswerForm("regex", regex, f"{prefix}regex"),
        None if choice is None else AnswerForm("choice", choice, f"{prefix}choice"),
        None if grammar is None else AnswerForm("grammar", grammar, f"{prefix}grammar"),
    ]
    return [form for form in forms if form is not None]
