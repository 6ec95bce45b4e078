"""Parses the bodies of requests: strict types, every limit named, every unknown field refused by name."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from gateway.errors import APIError, invalid
from gateway.openai.parameters import CHAT, COMPLETION, MESSAGE, implemented

STOPS = 16  # stop strings that a request may have
PROMPTS = 128  # that one completion request may have
MESSAGES = 2048  # that one chat may have
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1  # priorities that a request may have
StopText = Annotated[str, Meta(min_length=1, max_length=256)]


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Says what a stream contains beside the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: Literal[False] | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the parameters that both kinds of completion have."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=STOPS)] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    priority: Annotated[int, Meta(ge=LOWEST, le=HIGHEST)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None

    def samples(self) -> int:
        """Returns the number of choices for each prompt. Raises `APIError` if `best_of` asks for more."""
        samples = 1 if self.n is None else self.n
        if self.best_of not in (None, samples):
            message = f"best_of is {self.best_of} and n is {samples}: choosing the best is not supported"
            raise invalid(message, "best_of", "unsupported_parameter")
        return samples

    def stops(self) -> tuple[str, ...]:
        """Returns the stop strings."""
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop or ())

    def limit(self) -> int | None:
        """Returns the limit of output tokens, under either of its names, or None. Raises `APIError` if they differ."""
        both = {value for value in (self.max_tokens, self.max_completion_tokens) if value is not None}
        if len(both) > 1:
            raise invalid("max_tokens and max_completion_tokens differ; give one of them", "max_completion_tokens")
        return both.pop() if both else None


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Holds a text part of a message. Other kinds of parts are refused by name."""

    text: str


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds one message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        """Returns it as chat templates take it: parts joined by line breaks, `developer` by its old name `system`."""
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": content} | ({"name": self.name} if self.name is not None else {})


class ChatRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the body of /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]


class CompletionRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the body of /v1/completions. A prompt is text or token ids; of a list, each prompt has `n` choices."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]

    def prompts(self) -> list[str | list[int]]:
        """Returns its prompts, each as text or as token ids. Raises `APIError` for a list that mixes them."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = set(map(type, self.prompt))
        if len(kinds) > 1:
            raise invalid("prompt: a list holds only texts, only token ids, or only lists of token ids", "prompt")
        return [cast(list[int], self.prompt)] if int in kinds else cast(list[str | list[int]], self.prompt)


Body = TypeVar("Body", ChatRequest, CompletionRequest)


def parse_chat(body: bytes) -> ChatRequest:
    """Returns the body of a chat. Raises `APIError` for whatever is wrong with it."""
    fields = implemented(_object(body), CHAT)
    messages = fields.get("messages")
    if isinstance(messages, list):
        if len(messages) > MESSAGES:
            raise invalid(f"messages: {len(messages)} messages are more than {MESSAGES}", "messages")
        fields["messages"] = [_message(number, message) for number, message in enumerate(messages)]
    return _convert(fields, ChatRequest)


def parse_completion(body: bytes) -> CompletionRequest:
    """Returns the body of a completion. Raises `APIError` for whatever is wrong with it."""
    fields = implemented(_object(body), COMPLETION)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) > PROMPTS and not isinstance(prompt[0], int):
        raise invalid(f"prompt: {len(prompt)} prompts are more than {PROMPTS}", "prompt")
    return _convert(fields, CompletionRequest)


def _whole(value: Any) -> Any:
    """Returns a number that JSON writes with a fraction of zero as the integer that it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _message(number: int, message: Any) -> Any:
    return implemented(message, MESSAGE, f"messages[{number}].") if isinstance(message, dict) else message


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        body.decode()
        found = msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8: byte {error.start} cannot be decoded", code="invalid_encoding") from None
    except msgspec.ValidationError:
        raise invalid("the body has a number that is out of range", code="invalid_value") from None
    except msgspec.DecodeError as error:
        raise invalid(f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise invalid("the body is nested too deeply", code="invalid_json") from None
    if not isinstance(found, dict):
        raise invalid("the body is not a JSON object", code="invalid_json")
    return found


def _convert(fields: Mapping[str, Any], kind: type[Body]) -> Body:
    try:
        return msgspec.convert({name: _whole(value) for name, value in fields.items()}, kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None


_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)


def _refusal(error: str) -> APIError:
    """Returns msgspec's sentence as an error, with the field's name in front and as `param`."""
    place = _PLACE.match(error)
    assert place is not None
    what, path = place["what"], (place["path"] or "").lstrip(".")
    for pattern, sentence, code in (
        (_UNKNOWN, "{} is not a parameter", "unknown_parameter"),
        (_MISSING, "{} is missing", "missing_required_parameter"),
    ):
        if found := pattern.match(what):
            name = f"{path}.{found['name']}" if path else found["name"]
            return invalid(sentence.format(name), name, code)
    code = "invalid_type" if " got " in what else "invalid_value"
    return invalid(f"{path}: {what[0].lower()}{what[1:]}" if path else what, path or None, code)
