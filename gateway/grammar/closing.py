"""Closes the objects of a JSON schema: properties that the schema does not name are forbidden, unless it allows them.

A model that may invent properties goes on inventing them, and its answer never ends. An object is closed if it has
`properties` or `patternProperties` and no `additionalProperties`. An object without named properties stays open.

The parts of a composition (`allOf`, `anyOf`, `oneOf`, `$ref` beside other keywords) describe one object, so each part
allows the properties that the others name: this is the meaning of `unevaluatedProperties: false`, which llguidance
lacks. A definition that is used both alone and in a composition is therefore written twice, closed and open.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from checkpoints.grammars import GrammarError
from gateway.grammar.pointers import named_by

MAX_ADDED_NAMES = 1 << 14  # properties that parts of compositions take over from each other

_SUBSCHEMA_KEYS = frozenset(
    {"items", "prefixItems", "additionalItems", "additionalProperties"}
)  # values are schemas or lists of schemas
_NAMED_SUBSCHEMA_KEYS = frozenset({"properties", "patternProperties"})
_IN_PLACE_KEYS = ("allOf", "anyOf", "oneOf")
_BRANCH_KEYS = ("anyOf", "oneOf")
_DEFINITION_KEYS = frozenset({"$defs", "definitions"})
_RELEVANT_KEYS = frozenset({"$ref", *_IN_PLACE_KEYS}) | _SUBSCHEMA_KEYS | _NAMED_SUBSCHEMA_KEYS | {"$id"}
_DECIDING_KEYS = frozenset({"additionalProperties", "unevaluatedProperties", "enum", "const"})


class PropertyNames(NamedTuple):
    """The properties that a part of a composition names."""

    listed: dict[str, None]  # in the order of the schema, which is the order in answers
    patterns: dict[str, None]
    required: dict[str, None]
    lists: bool = False  # whether it has `properties` or `patternProperties`
    decides: bool = False  # whether it rules on other properties, or is unknown
    least: int = 0  # minimum number of properties


NO_PROPERTIES = PropertyNames({}, {}, {})


def with_closed_objects(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of a schema with closed objects. Raises `GrammarError` if compositions have too many names."""
    return _Closing(schema).written()


class _Closing:
    """Closes the objects of one schema, of its subschemas, and of the definitions that it refers to."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[int, PropertyNames] = {}  # by the id() of a part of the root
        self._copies: dict[tuple[str, bool], str] = {}  # names of copies, by reference and whether closed
        self._waiting: list[tuple[str, bool]] = []  # copies still to be written
        self._added = 0
        self._leads_out = False  # a reference is unresolved: perhaps a definition's `$id`

    def written(self) -> dict[str, Any]:
        """Returns the closed schema, with copies of the definitions in `$defs`."""
        found: dict[str, Any] = self._closed(self._root, NO_PROPERTIES)
        copies: dict[str, Any] = {}
        while self._waiting:
            reference, closed = self._waiting.pop()
            part = named_by(reference, self._root)
            copies[self._copies[reference, closed]] = self._closed(part, NO_PROPERTIES) if closed else self._open(part)
        if not self._leads_out:
            found = {key: value for key, value in found.items() if key not in _DEFINITION_KEYS}
        kept = found.get("$defs")
        return found | {"$defs": {**(kept if isinstance(kept, dict) else {}), **copies}} if copies else found

    def _closed(self, schema: Any, outer: PropertyNames) -> Any:
        """Returns a part that allows the properties of itself and of the parts beside it (`outer`)."""
        if not self._is_known(schema) or _RELEVANT_KEYS.isdisjoint(schema):
            return schema
        alone = outer == NO_PROPERTIES == self._named(schema, without=("$ref",))
        beside = _united((outer, self._named(schema, without=("anyOf",)))) if "anyOf" in schema else NO_PROPERTIES
        # Branches of `oneOf` stay open: closing one would change how many branches a value fits.
        found = self._rewritten(schema, lambda branch: self._closed(branch, beside), closed_reference=alone)
        if (alone and "$ref" in schema) or not self._named(schema, without=_BRANCH_KEYS).lists:
            return found
        every = _united((outer, self._named(schema)))
        properties = every.listed | every.required
        if every.decides or (every.least > len(properties) and not every.patterns):
            return found
        for key, names in (("properties", properties), ("patternProperties", every.patterns)):
            if names and isinstance(listed := found.get(key, {}), dict):
                found[key] = self._with_names(listed, names)
        return found | {"additionalProperties": False}

    def _open(self, schema: Any) -> Any:
        """Returns a part whose own objects stay open, with closed subschemas."""
        return self._rewritten(schema, self._open, closed_reference=False) if self._is_known(schema) else schema

    def _rewritten(
        self, schema: dict[str, Any], branch: Callable[[Any], Any], closed_reference: bool
    ) -> dict[str, Any]:
        """Returns a part with closed subschemas. `branch` rewrites the branches of its `anyOf`."""
        found = {}
        for key, value in schema.items():
            if key == "$ref" and named_by(value, self._root) is None:
                self._leads_out = True
            elif key == "$ref":
                value = self._copy(value, closed_reference)
            elif key in _IN_PLACE_KEYS and isinstance(value, list):
                value = [(branch if key == "anyOf" else self._open)(each) for each in value]
            elif key in _SUBSCHEMA_KEYS and isinstance(value, list):
                value = [self._closed(each, NO_PROPERTIES) for each in value]
            elif key in _SUBSCHEMA_KEYS:
                value = self._closed(value, NO_PROPERTIES)
            elif key in _NAMED_SUBSCHEMA_KEYS and isinstance(value, dict):
                value = {name: self._closed(each, NO_PROPERTIES) for name, each in value.items()}
            found[key] = value
        return found

    def _copy(self, reference: str, closed: bool) -> str:
        """Returns a reference to a copy of a definition, closed or open, which `written` makes later."""
        if (reference, closed) not in self._copies:
            self._copies[reference, closed] = f"{'closed' if closed else 'open'}_{len(self._copies)}"
            self._waiting.append((reference, closed))
        return f"#/$defs/{self._copies[reference, closed]}"

    def _with_names(self, properties: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
        """Returns the properties, with one of any value added for each name that they lack. Raises `GrammarError`."""
        added = {name: True for name in names if name not in properties}
        self._added += len(added)
        if self._added > MAX_ADDED_NAMES:
            message = f"its compositions name too many properties for each other: more than {MAX_ADDED_NAMES}"
            raise GrammarError(message)
        return properties | added

    def _named(self, schema: dict[str, Any], without: Collection[str] = ()) -> PropertyNames:
        """Returns the names of properties in a schema and its compositions (`allOf`, …), except keys of `without`."""
        if any(key in schema for key in without):
            return _united(self._parts(schema, without))
        if id(schema) not in self._known:
            self._known[id(schema)] = NO_PROPERTIES  # for a reference back to this part
            self._known[id(schema)] = _united(self._parts(schema, ()))
        return self._known[id(schema)]

    def _parts(self, schema: dict[str, Any], without: Collection[str]) -> Iterator[PropertyNames]:
        """Yields the names of properties in the schema itself, and then in each schema of its compositions."""
        properties, required, least = (schema.get(key) for key in ("properties", "required", "minProperties"))
        listed = [key for key in _NAMED_SUBSCHEMA_KEYS if isinstance(schema.get(key), dict)]
        yield PropertyNames(
            dict.fromkeys(properties if isinstance(properties, dict) else ()),
            dict.fromkeys(schema["patternProperties"] if "patternProperties" in listed else ()),
            dict.fromkeys(_strings(required)),
            bool(listed),
            not _DECIDING_KEYS.isdisjoint(schema),
            least if isinstance(least, int) else 0,
        )
        parts = [part for key in _IN_PLACE_KEYS if key not in without for part in _list(schema.get(key))]
        if "$ref" in schema and "$ref" not in without:
            parts.append(named_by(schema["$ref"], self._root))
        for part in parts:
            if self._is_known(part):
                yield self._named(part)
            elif not isinstance(part, bool):
                yield PropertyNames({}, {}, {}, decides=True)

    def _is_known(self, schema: Any) -> bool:
        """Returns whether a part can be analysed: references inside a part with an `$id` start from that part."""
        if isinstance(schema, dict) and "$id" in schema and schema is not self._root:
            self._leads_out = True
            return False
        return isinstance(schema, dict)


def _united(parts: Iterable[PropertyNames]) -> PropertyNames:
    together = [part for part in parts if part != NO_PROPERTIES]
    if len(together) < 2:
        return together[0] if together else NO_PROPERTIES
    listed: dict[str, None] = {}
    patterns: dict[str, None] = {}
    required: dict[str, None] = {}
    lists = decides = False
    least = 0
    for part in together:
        listed.update(part.listed)
        patterns.update(part.patterns)
        required.update(part.required)
        lists, decides, least = lists or part.lists, decides or part.decides, max(least, part.least)
    return PropertyNames(listed, patterns, required, lists, decides, least)


def _strings(value: Any) -> list[str]:
    return [each for each in _list(value) if isinstance(each, str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
