"""Writes /openapi.json from the endpoints and their types.

Limits of this server (its model, its vocabulary, its context) are added by the names of parameters, which mean the same
everywhere.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from contracts.version import BATON_VERSION
from gateway.error_types import ERROR_TYPES
from gateway.errors import api_of
from gateway.web.endpoint import EVENTS_MEDIA, JSON_MEDIA, Endpoint

Schema = dict[str, Any]
_REF_TEMPLATE = "#/components/schemas/{name}"
_PARAMETER_REGEX = re.compile(r"\{(\w+)(?::\w+)?\}")
_LEFT_OUT = {"MessageItem": "type"}
"""Required fields by component that OpenAI's clients omit; the server adds them before decoding."""

_API_DESCRIPTION = (
    "Serves one model, and adapters of it. The key of `Authorization: Bearer` (or of `x-api-key`) says whose KV cache "
    "may be used, and is checked where the server has a file of keys. Errors are in one envelope; below /v1/messages "
    "in Anthropic's."
)


class ServerLimits(Struct, frozen=True):
    """Limits that only a running server knows; 0: not known yet, or no limit."""

    models: tuple[str, ...]  # and adapters
    vocabulary: int = 0  # token ids
    context: int = 0  # tokens of prompt and answer
    samples: int = 0


class OpenAPI:
    """The schemas of all endpoints."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._shown = [endpoint for endpoint in endpoints if endpoint.shown]
        types = [kind for endpoint in self._shown for kind in _types(endpoint)]
        types += ERROR_TYPES.values()
        schemas, self._components = _schemas(tuple(types))
        self._schema_of = dict(zip(map(id, types), schemas, strict=True))

    def document(self, limits: ServerLimits, left_out: str = "") -> Schema:
        """Returns the document as plain data, without endpoints that are made for models of the kind `left_out`."""
        paths: dict[str, Schema] = {}
        for endpoint in self._shown:
            if endpoint.made_for == left_out:
                continue
            path = _PARAMETER_REGEX.sub(r"{\1}", endpoint.path)
            paths.setdefault(path, {})[endpoint.method.lower()] = self._operation(endpoint, limits)
        return {
            "openapi": "3.1.0",
            "info": {"title": "Baton", "version": BATON_VERSION, "description": _API_DESCRIPTION},
            "paths": paths,
            "components": {"schemas": self._components},
        }

    def _operation(self, endpoint: Endpoint, limits: ServerLimits) -> Schema:
        words = [endpoint.method.lower(), *re.findall(r"\w+", _PARAMETER_REGEX.sub(r"\1", endpoint.path))]
        operation: Schema = {
            "operationId": "_".join(words),
            "summary": endpoint.summary,
            "responses": self._responses(endpoint),
        }
        names = _PARAMETER_REGEX.findall(endpoint.path)
        if names:
            known = {"enum": [*limits.models]}
            operation["parameters"] = [
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": known if name == "model" else {"type": "string"},
                }
                for name in names
            ]
        if endpoint.body is not None:
            content = {JSON_MEDIA: {"schema": self._body(endpoint, limits)}}
            operation["requestBody"] = {"required": True, "content": content}
        return operation

    def _responses(self, endpoint: Endpoint) -> Schema:
        content: Schema = {endpoint.media.partition(";")[0]: {"schema": self._schema(endpoint.answer)}}
        error = self._schema(ERROR_TYPES[api_of(endpoint.path)])
        if endpoint.event is not None:
            content[endpoint.stream] = {"itemSchema": self._event(endpoint, error)}
        wrong = {JSON_MEDIA: {"schema": error}}
        others = {
            str(status): {
                "description": "What it says of itself.",
                "content": {JSON_MEDIA: {"schema": self._schema(kind)}},
            }
            for status, kind in endpoint.others.items()
        }
        return {
            "200": {"description": "The answer.", "content": content},
            **others,
            "4XX": {"description": "The request is wrong, or too much.", "content": wrong},
            "5XX": {"description": "Nobody can take it now, or it has failed.", "content": wrong},
        }

    def _event(self, endpoint: Endpoint, error: Schema) -> Schema:
        """Returns the schema of one event or line, as in OpenAPI 3.2; older tools ignore it."""
        inside = {"anyOf": [self._schema(endpoint.event), error]}
        if endpoint.stream != EVENTS_MEDIA:
            return inside
        data: Schema = {"type": "string", "contentMediaType": JSON_MEDIA, "contentSchema": inside}
        if endpoint.last:
            data = {"anyOf": [data, {"const": endpoint.last}]}
        return {"type": "object", "properties": {"data": data, "event": {"type": "string"}}, "required": ["data"]}

    def _schema(self, kind: Any) -> Schema:
        return self._schema_of[id(kind)] if kind is not None else {"type": "string"}

    def _body(self, endpoint: Endpoint, limits: ServerLimits) -> Schema:
        bodies = [self._narrowed(kind, endpoint, limits) for kind in _bodies(endpoint)]
        return bodies[0] if len(bodies) == 1 else {"anyOf": bodies}

    def _narrowed(self, kind: type[Struct], endpoint: Endpoint, limits: ServerLimits) -> Schema:
        """Returns the schema of a body with this server's limits."""
        name = self._schema(kind)["$ref"].rpartition("/")[2]
        schema = self._components[name]
        properties = {**schema["properties"], **{name: each.schema for name, each in endpoint.neutral.items()}}
        for field in properties.keys() - endpoint.neutral.keys():
            properties[field] = _of_one_kind(properties[field])
        # Clients of other APIs may ask for more tokens than the context has; the number is reduced.
        for field, bounds in _bounds(limits, cut=api_of(endpoint.path) != "openai").items():
            if field in properties and field not in endpoint.neutral:
                properties[field] = _within(properties[field], bounds)
        for other, alias in endpoint.aliases.items():
            properties[other] = _also(properties[alias.name], alias.unset)
        return {**schema, "properties": properties}


@cache
def _schemas(types: tuple[Any, ...]) -> tuple[tuple[Schema, ...], dict[str, Schema]]:
    """Returns the schema of each type, and the components that they name: made once in a process, for 50 ms."""
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF_TEMPLATE)
    for name, field in _LEFT_OUT.items():
        if name in components:
            components[name]["required"].remove(field)
    return schemas, components


def _types(endpoint: Endpoint) -> Iterator[Any]:
    yield from _bodies(endpoint)
    yield from (kind for kind in (endpoint.answer, endpoint.event, *endpoint.others.values()) if kind is not None)


def _bodies(endpoint: Endpoint) -> tuple[Any, ...]:
    return endpoint.body if isinstance(endpoint.body, tuple) else (endpoint.body,) if endpoint.body is not None else ()


def _bounds(limits: ServerLimits, cut: bool) -> Mapping[str, Schema]:
    """Returns the bounds of parameters by name; none for unknown limits, or for values that are `cut` to fit."""
    known: dict[str, Schema] = {"model": {"type": "string", "enum": [*limits.models]}}
    if limits.samples:
        known |= {name: {"type": "integer", "maximum": limits.samples} for name in ("n", "best_of")}
    if limits.context and not cut:
        known |= {
            name: {"type": "integer", "maximum": limits.context - 1}
            for name in ("max_tokens", "max_completion_tokens", "min_tokens")
        }
    if limits.vocabulary:
        ids = {"type": "integer", "minimum": 0, "maximum": limits.vocabulary - 1}
        known |= {name: ids for name in ("allowed_token_ids", "stop_token_ids", "tokens", "prompt")}
    return known


def _within(schema: Schema, bounds: Schema) -> Schema:
    if "anyOf" in schema:
        return {**schema, "anyOf": [_within(one, bounds) for one in schema["anyOf"]]}
    if "items" in schema:
        return {**schema, "items": _within(schema["items"], bounds)}
    return {**schema, **bounds} if schema.get("type") == bounds["type"] else schema


def _also(schema: Schema, value: int | None) -> Schema:
    """Returns a schema that one more value fits, if there is one."""
    return schema if value is None else {"anyOf": [*schema.get("anyOf", [schema]), {"const": value}]}


def _of_one_kind(schema: Schema) -> Schema:
    """Returns a schema in which a list holds values of one type only, as prompts do; types cannot express that."""
    if "anyOf" in schema:
        kinds = [_of_one_kind(one) for one in schema["anyOf"]]
        return {**schema, "anyOf": [each for one in kinds for each in one.get("anyOf", [one])]}
    values = schema.get("items", {}).get("anyOf", ()) if isinstance(schema.get("items"), dict) else ()
    if not values or not all("type" in one for one in values):
        return schema
    return {"anyOf": [{**schema, "items": one} for one in values]}
