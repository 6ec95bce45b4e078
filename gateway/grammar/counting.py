"""Rewrites an object's `minProperties` and `maxProperties` as a choice between sets of its optional properties.

llguidance counts properties only if none of the listed ones is optional. So each branch of an `anyOf` fixes some
optional properties, in the schema's order, as present or absent, until the rest is free or all are fixed:

    a?, b?, c?, at least 2:   a and b, c is free | a and c without b | b and c without a
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

MAX_BRANCHES = 128
UNCOUNTED_ERROR = "min/maxProperties only supported"  # llguidance's error for counts that were not rewritten
COUNT_REFUSAL = (
    "minProperties and maxProperties are kept to beside the properties of their object, "
    f"where they leave at most {MAX_BRANCHES} choices between the optional ones"
)

_COUNT_KEYS = ("minProperties", "maxProperties")


def with_counts(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns one schema, without its subschemas, rewritten or unchanged. With too many branches it stays unchanged."""
    properties, told = schema.get("properties"), schema.get("required")
    least, most = (value if _is_count(value := schema.get(key)) else None for key in _COUNT_KEYS)
    if not isinstance(properties, dict) or (least is None and most is None):
        return schema
    needed = {name for name in told if isinstance(name, str)} & properties.keys() if isinstance(told, list) else set()
    optional = [name for name, value in properties.items() if name not in needed and value is not False]
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    beside = schema.get("allOf", [])
    if not optional or not isinstance(beside, list):
        return schema
    least = max(0, (least or 0) - len(needed))
    most = len(optional) if most is None else min(len(optional), most - len(needed))
    # An impossible closed object is not searched for, which would take exponential time.
    choices = () if closed and least > most else _choices(optional, least, most, closed)
    chosen = list(islice(choices, MAX_BRANCHES + 1))
    if len(chosen) > MAX_BRANCHES:
        return schema
    branches = {"anyOf": [_branch(each) for each in chosen]} if chosen else {"enum": []}
    kept = {key: value for key, value in schema.items() if not closed or key not in _COUNT_KEYS}
    return kept | ({"allOf": [*beside, branches]} if "anyOf" in schema else branches)


def _choices(names: Sequence[str], minimum: int, maximum: int, closed: bool) -> Iterator[dict[str, bool]]:
    """Yields which of the first few names are present, so that `minimum` to `maximum` of all names are present.

    If other properties are allowed (not `closed`), all names are fixed, and the others may make up for `minimum`.
    """
    waiting: list[dict[str, bool]] = [{}]
    while waiting:
        chosen = waiting.pop()
        come = sum(chosen.values())
        may_come = len(names) - len(chosen) + come
        if len(chosen) == len(names) or (closed and minimum <= come and may_come <= maximum):
            if come <= maximum and (minimum <= come or not closed):
                yield chosen
            continue
        name = names[len(chosen)]
        if may_come > minimum or not closed:
            waiting.append({**chosen, name: False})
        if come < maximum:
            waiting.append({**chosen, name: True})


def _branch(chosen: dict[str, bool]) -> dict[str, Any]:
    come, left_out = ([name for name, comes in chosen.items() if comes is way] for way in (True, False))
    return {"required": come, "properties": dict.fromkeys(left_out, False)}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
