"""Defines the form of an answer, and makes a grammar of it."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal, NamedTuple

import msgspec

from checkpoints.grammars import MAX_GRAMMAR_BYTES, GrammarError
from gateway.errors import invalid
from gateway.grammar.checks import GrammarChecks
from gateway.grammar.texts import (
    JSONSchema,
    of_choices,
    of_json_object,
    of_json_schema,
    of_regex,
)
from infra.fair_queueing.turns import NO_TENANT, TenantShare

MAX_REGEX_CHARS = 1 << 14
ASSUMED_SCHEMA_CHARS = 4096  # assumed size of a parsed schema or of choices: work for a thread

Work = Callable[[Callable[[], str], int, str, TenantShare], Awaitable[str]]
"""Runs work of a size, for a field and a tenant, at once or on a thread."""


class AnswerForm(NamedTuple):
    """A form of the answer. `param` is the field of the request, as errors name it."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    value: str | JSONSchema | list[str] = (
        ""  # a schema, or its text; a regex; the choices; a grammar in Lark or as GBNF
    )
    param: str = "response_format"
    closes: bool = True  # whether unnamed properties of a schema are forbidden by default


async def grammar_of(form: AnswerForm, checks: GrammarChecks, work: Work, share: TenantShare = NO_TENANT) -> str:
    """Returns the grammar of a form, in Lark. The complete grammar that contains it is still to be checked.

    Raises `APIError` for a schema that is not JSON, and for a grammar that cannot be read as Lark.
    """
    if form.kind == "grammar":
        return await checks.checked(str(form.value), form.param, "any", share)
    size = len(form.value) if isinstance(form.value, str) else ASSUMED_SCHEMA_CHARS
    return await work(partial(_written, form), size, form.param, share)


def _written(form: AnswerForm) -> str:
    match form.kind, form.value:
        case "json_object", _:
            return of_json_object()
        case "json_schema", str(text):
            return _of_schema(_parsed(text, form.param), form)
        case "json_schema", (dict() | bool()) as schema:
            return _of_schema(schema, form)
        case "regex", str(pattern):
            if len(pattern) > MAX_REGEX_CHARS:
                message = f"{form.param}: {len(pattern)} characters of a regex are more than {MAX_REGEX_CHARS}"
                raise invalid(message, form.param, "grammar_too_complex")
            return of_regex(pattern)
        case "choice", list(choices):
            return of_choices(choices)
    raise AssertionError(f"a {form.kind} is not said by a {type(form.value).__name__}")


def _of_schema(schema: JSONSchema, form: AnswerForm) -> str:
    try:
        return of_json_schema(schema, form.closes)
    except GrammarError as error:
        raise invalid(f"{form.param}: {error}", form.param, "grammar_too_complex") from None


def _parsed(text: str, param: str) -> JSONSchema:
    if len(text) > MAX_GRAMMAR_BYTES:
        message = f"{param}: {len(text)} characters of schema are more than {MAX_GRAMMAR_BYTES}"
        raise invalid(message, param, "grammar_too_complex")
    try:
        return msgspec.json.decode(text, type=dict | bool)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"{param}: the schema is not JSON: {error}", param, "invalid_grammar") from None
