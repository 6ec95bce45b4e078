"""The fields of a config struct as options: a field's type and `Meta` decide its limits, help and metavar."""

from collections.abc import Iterator
from inspect import get_annotations
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Struct

MAX_CHOICES_COLUMNS = 24
"""Longest list of choices that stands for itself in place of a metavar."""
METAVARS: dict[Any, str] = {bool: "", int: "N", float: "NUMBER", str: "TEXT"}
"""By a field's type, unless its `Meta` has an extra `metavar`, or the unit `bytes`."""


class OptionField(NamedTuple):
    """A field of a config struct, or of a struct in it."""

    name: str
    kind: Any  # the annotation
    required: bool
    default: Any
    group: str  # what the class that defines the field is about

    @property
    def option(self) -> str:
        return option(self.name)

    @property
    def base(self) -> Any:
        """The type without its `Meta`."""
        return get_args(self.kind)[0] if _metas(self.kind) else self.kind

    @property
    def repeats(self) -> bool:
        return get_origin(self.base) is tuple

    @property
    def in_bytes(self) -> bool:
        return bool(self._extra("unit") == "bytes")

    @property
    def description(self) -> str:
        found = (meta.description for meta in reversed(_metas(self.kind)) if meta.description)
        return next(found, None) or self.name.replace("_", " ")

    @property
    def described(self) -> bool:
        return any(meta.description for meta in _metas(self.kind))

    @property
    def metavar(self) -> str:
        """The placeholder of a value in help texts, such as N, SIZE or DIR; empty for a switch."""
        if declared := self._extra("metavar"):
            return str(declared)
        if self.in_bytes:
            return "SIZE"
        choices = [choice for choice in _leaves(self.base) if choice is not type(None)]
        if any(isinstance(choice, type) for choice in choices):
            return METAVARS[choices[0]]
        listed = "|".join(map(str, choices))
        return listed if len(listed) <= MAX_CHOICES_COLUMNS else "NAME"

    def _extra(self, key: str) -> Any:
        extras = [meta.extra for meta in reversed(_metas(self.kind)) if meta.extra]
        return next((extra[key] for extra in extras if key in extra), None)


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def option_fields(config: type[Struct]) -> Iterator[OptionField]:
    """Yields the fields of a struct, and in their places the fields of the structs in it."""
    for field in msgspec.structs.fields(config):
        if is_struct(field.type):
            yield from option_fields(field.type)
        else:
            yield OptionField(field.name, field.type, field.required, field.default, _group(config, field.name))


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _group(config: type[Struct], name: str) -> str:
    """Returns the first sentence of the docstring of the class that defines a field."""
    owner = next(each for each in config.__mro__ if name in get_annotations(each))
    return (owner.__doc__ or owner.__name__).partition("\n")[0].rstrip(".")


def _metas(kind: Any) -> list[msgspec.Meta]:
    return [part for part in getattr(kind, "__metadata__", ()) if isinstance(part, msgspec.Meta)]


def _leaves(kind: Any) -> list[Any]:
    """Returns the choices of a `Literal`, or the types of a union or tuple."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    parts = [part for part in get_args(kind) if part is not Ellipsis]
    if hasattr(kind, "__metadata__"):
        parts = parts[:1]
    return [leaf for part in parts for leaf in _leaves(part)] if parts else [kind]
