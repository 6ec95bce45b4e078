"""What happens to fields of a body that this server does not know: refused by name, or left out and reported."""

import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import inspect

MAX_REPORTED_FIELDS = 16  # names in one report
MAX_LOGGED_FIELDS = 256  # different names in the log of one gateway
log = logging.getLogger("baton.gateway")
_REPORTABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


class UnknownFields:
    """The unknown fields of one body. With `ignores` they are left out; without, the body's type refuses them."""

    def __init__(self, ignores: bool = False) -> None:
        self.ignores = ignores
        self._left_out: list[str] = []

    def without(self, fields: Mapping[str, Any], kind: Any) -> Mapping[str, Any]:
        """Returns the fields of a body of this type without unknown ones, if these are ignored."""
        if not self.ignores:
            return fields
        known: Mapping[str, Any] = self._known(fields, _described(kind), "")
        return known

    def report(self) -> list[str]:
        """Returns the names of left-out fields, with dots between levels: printable ones, and only the first of many.

        Names are the client's text, so names that are no identifiers are replaced.
        """
        names = [name if _REPORTABLE.fullmatch(name) else "(unprintable)" for name in self._left_out]
        return list(dict.fromkeys(names))[:MAX_REPORTED_FIELDS]

    def _known(self, value: Any, kind: inspect.Type, path: str) -> Any:
        struct = _struct_of(value, kind)
        if struct is None:
            return value
        types = {field.encode_name: field.type for field in struct.fields}
        known = {}
        for name, inner in value.items():
            if name in types:
                known[name] = self._known(inner, types[name], f"{path}{name}.")
            elif struct.forbid_unknown_fields and name != struct.tag_field:
                self._left_out.append(path + name)
            else:
                known[name] = inner
        return known


class IgnoredFieldsLog:
    """Logs the name of each ignored field once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, names: Sequence[str]) -> None:
        new = [name for name in names if name not in self._logged][: MAX_LOGGED_FIELDS - len(self._logged)]
        if new:
            self._logged.update(new)
            log.info("fields of requests are ignored, by --unknown-fields ignore: %s", ", ".join(new))


REFUSED = UnknownFields()
"""Refuses unknown fields."""


@cache
def _described(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _struct_of(value: Any, kind: inspect.Type) -> inspect.StructType | None:
    """Returns the struct that an object will become, among the types that a field may have; None for other values."""
    if not isinstance(value, Mapping):
        return None
    types = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    structs = [one for one in types if isinstance(one, inspect.StructType)]
    fitting = [one for one in structs if one.tag_field is None or value.get(one.tag_field) == one.tag]
    return fitting[0] if len(fitting) == 1 else None
