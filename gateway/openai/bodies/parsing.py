"""Parses the bodies of requests. Errors name the wrong field and the reason."""

import codecs
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from checkpoints.grammars import GrammarError
from gateway.errors import APIError, invalid
from gateway.openai.bodies.messages import MAX_MESSAGES, TEXT_PART_TYPES
from gateway.openai.bodies.nesting import MAX_NESTING_LEVELS, is_too_deep
from gateway.openai.bodies.parameters import (
    ALIASES,
    CHAT_ALIASES,
    CHAT_PARAMETERS,
    COMPLETION_PARAMETERS,
    implemented,
    renamed,
)
from gateway.openai.bodies.schemas import MAX_PROMPTS, ChatRequest, CompletionRequest
from gateway.openai.bodies.unknown_fields import REFUSED, UnknownFields

Body = TypeVar("Body")
MAX_EXACT_INTEGER = float(1 << 53)  # floats represent all integers up to this


def _number(written: str) -> float:
    number = float(written)
    if math.isinf(number):
        raise ValueError("out of range")
    return int(number) if number.is_integer() and abs(number) <= MAX_EXACT_INTEGER else number


_decoder = msgspec.json.Decoder(float_hook=_number)


def parse_chat(body: bytes, unknown: UnknownFields = REFUSED) -> ChatRequest:
    """Returns the body of a chat. Raises `APIError` if anything is wrong with it."""
    return chat_request(json_object(body), unknown)


def parse_completion(body: bytes, unknown: UnknownFields = REFUSED) -> CompletionRequest:
    """Returns the body of a completion. Raises `APIError` if anything is wrong with it."""
    fields = implemented(renamed(json_object(body), ALIASES), COMPLETION_PARAMETERS)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) > MAX_PROMPTS and not isinstance(prompt[0], int):
        raise invalid(f"prompt: {len(prompt)} prompts are more than {MAX_PROMPTS}", "prompt")
    return converted(fields, CompletionRequest, unknown)


def chat_request(given: Mapping[str, Any], unknown: UnknownFields = REFUSED) -> ChatRequest:
    """Returns plain data as a chat. Raises `APIError` if anything is wrong with it."""
    fields = implemented(renamed(given, CHAT_ALIASES), CHAT_PARAMETERS)
    check_messages(fields.get("messages"))
    check_kinds(fields.get("tools"), "tools", {"function", "custom"}, "a tool")
    check_kinds([fields.get("tool_choice")], "tool_choice", {"function", "custom", "allowed_tools"}, "a choice")
    return converted(fields, ChatRequest, unknown)


def check_messages(messages: Any) -> None:
    """Raises `APIError` for errors in messages that types cannot express. Anything but a list is left to the types."""
    if not isinstance(messages, list):
        return
    if len(messages) > MAX_MESSAGES:
        raise invalid(f"messages: {len(messages)} messages are more than {MAX_MESSAGES}", "messages")
    for number, message in enumerate(messages):
        if isinstance(message, dict):
            _check_message(message, f"messages[{number}]")


def check_kinds(found: Any, where: str, known: set[Any], what: str) -> None:
    """Raises `APIError` if one of these objects has a type that is not in `known`."""
    for name, kind in _kinds(found, where):
        if isinstance(kind, str) and kind not in known:
            message = f"{name}: {what} of the type {kind[:64]!r} is not supported, only of {', '.join(sorted(known))}"
            raise invalid(message, name, "unsupported_parameter")


def json_object(body: bytes) -> dict[str, Any]:
    """Returns a body as plain data. Raises `APIError` if it is not a JSON object in UTF-8."""
    try:
        body.decode()
        found = _decoder.decode(body)
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8: byte {error.start} cannot be decoded", code="invalid_encoding") from None
    except msgspec.ValidationError:
        raise invalid("the body has a number that is out of range", code="invalid_value") from None
    except msgspec.DecodeError as error:
        why = "it begins with a byte order mark" if body.startswith(codecs.BOM_UTF8) else error
        raise invalid(f"the body is not JSON: {why}", code="invalid_json") from None
    except RecursionError:
        raise invalid("the body is nested too deeply", code="invalid_json") from None
    if not isinstance(found, dict):
        raise invalid("the body is not a JSON object", code="invalid_json")
    if is_too_deep(found):
        raise invalid(f"the body is nested more than {MAX_NESTING_LEVELS} levels deep", code="nested_too_deeply")
    return found


def converted(fields: Mapping[str, Any], kind: type[Body], unknown: UnknownFields = REFUSED) -> Body:
    """Returns plain data as a struct. Raises `APIError` with the name of the field that does not fit."""
    try:
        return msgspec.convert(unknown.without(fields, kind), kind)
    except msgspec.ValidationError as error:
        of_grammar = error.__cause__ is not None and isinstance(error.__cause__.__cause__, GrammarError)
        raise _refusal(str(error), "invalid_grammar" if of_grammar else "invalid_value") from None


def _check_message(message: Mapping[str, Any], where: str) -> None:
    """Raises `APIError` for missing content, and for parts that are not text."""
    content = message.get("content")
    if content is None and message.get("role") != "assistant":
        if "content" in message:
            raise invalid(
                f"{where}.content is null, and only an assistant's may be", f"{where}.content", "invalid_type"
            )
        raise invalid(f"{where}.content is missing", f"{where}.content", "missing_required_parameter")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in TEXT_PART_TYPES:
            name = f"{where}.content[{number}].type"
            raise invalid(f"{name}: parts of the type {kind[:64]!r} are not supported, only text is", name)


def _kinds(found: Any, where: str) -> Iterator[tuple[str, Any]]:
    for number, one in enumerate(found if isinstance(found, list) else ()):
        if isinstance(one, dict):
            place = where if where == "tool_choice" else f"{where}[{number}]"
            yield f"{place}.type", one.get("type")


_ERROR_REGEX = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN_FIELD_REGEX = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING_FIELD_REGEX = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)


def _refusal(error: str, value_code: str = "invalid_value") -> APIError:
    """Returns msgspec's error as an `APIError` that begins with the field's name and has it as `param`.

    `value_code`: the code of a value that has the right type and is wrong.
    """
    place = _ERROR_REGEX.match(error)
    assert place is not None
    what, path = place["what"], (place["path"] or "").lstrip(".")
    for pattern, sentence, code in (
        (_UNKNOWN_FIELD_REGEX, "{} is not a parameter", "unknown_parameter"),
        (_MISSING_FIELD_REGEX, "{} is missing", "missing_required_parameter"),
    ):
        if found := pattern.match(what):
            name = f"{path}.{found['name']}" if path else found["name"]
            return invalid(sentence.format(name), name, code)
    code = "invalid_type" if " got " in what else value_code
    return invalid(f"{path}: {what[0].lower()}{what[1:]}" if path else what, path or None, code)
