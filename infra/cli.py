"""Command-line options from config structs: a field's type, default, limits and help make an option."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct

from contracts.errors import ConfigError
from infra.sizes import parse_bytes

ConfigType = TypeVar("ConfigType", bound=Struct)


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def parse(config: type[ConfigType], argv: Sequence[str], prog: str) -> ConfigType:
    """Builds `config` from `argv`. Raises `ConfigError` naming the option and its value; `--help` exits with 0."""
    parser = _Parser(prog=prog, description=config.__doc__, allow_abbrev=False)
    parser.given = argv
    _add_options(parser, config)
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        raise ConfigError(unknown[0], " ".join(unknown[1:]) or None, "no such option; --help lists them")
    return _build(config, {key: value for key, value in vars(given).items() if value is not None})


def parse_or_exit(config: type[ConfigType], prog: str) -> ConfigType:
    """Calls `parse` for a main module. On an error it prints one sentence and exits with status 2."""
    try:
        return parse(config, sys.argv[1:], prog)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


class SpelledOption(NamedTuple):
    """An option on a command line."""

    option: str
    text: str
    usual: bool  # equals the default


def spell(config: Struct) -> list[SpelledOption]:
    """Returns the options from which `parse` builds the same struct, in its order.

    A repeatable option appears once for each value; an option whose value is None does not appear.
    """
    spelled = []
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        if _is_struct(field.type):
            spelled += spell(value)
            continue
        several = get_origin(_base(field.type)) is tuple
        for each in value if several else () if value is None else (value,):
            text = str(each).lower() if isinstance(each, bool) else str(each)
            spelled.append(SpelledOption(option(field.name), text, not field.required and value == field.default))
    return spelled


def words(config: Struct) -> list[str]:
    return [f"{each.option}={each.text}" for each in spell(config) if not each.usual]


class _Parser(argparse.ArgumentParser):
    """Raises `ConfigError` instead of printing its usage and exiting."""

    given: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        raise ConfigError(self.prog, " ".join(self.given), f"{message}; --help explains")


def _add_options(parser: argparse.ArgumentParser, config: type[Struct]) -> None:
    for field in msgspec.structs.fields(config):
        if _is_struct(field.type):
            _add_options(parser, field.type)
            continue
        meta = _meta(field.type)
        default = "" if field.required or field.default in ("", 0, None, ()) else f" (default {field.default})"
        description = ((meta.description if meta else None) or field.name).replace("%", "%%")
        base = _base(field.type)
        flag: dict[str, Any] = {"nargs": "?", "const": "true"} if base is bool else {}
        parser.add_argument(
            option(field.name),
            dest=field.name,
            action="append" if get_origin(base) is tuple else "store",
            metavar="VALUE",
            required=field.required,
            help=description + default,
            **flag,
        )


def _build(config: type[ConfigType], given: dict[str, Any]) -> ConfigType:
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(config):
        if _is_struct(field.type):
            values[field.name] = _build(field.type, given)
        elif field.name in given and not (given[field.name] == "" and field.default is None):  # empty: undecided
            values[field.name] = _convert(field.name, field.type, given[field.name])
    return config(**values)


def _convert(name: str, kind: Any, text: Any) -> Any:
    """Converts an option's text. Of a repeatable option, given as a list, empty texts are dropped."""
    meta = _meta(kind)
    try:
        if meta is not None and (meta.extra or {}).get("unit") == "bytes":
            return msgspec.convert(parse_bytes(text), kind)
        given = [each for each in text if each] if isinstance(text, list) else _plain(kind, text)
        return msgspec.convert(given, kind, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(option(name), text, _sentence(error, kind)) from None


def _plain(kind: Any, text: Any) -> Any:
    """Converts the text for a `Literal` of integers, for which msgspec accepts no string even in lax mode."""
    base = _base(kind)
    if get_origin(base) is Literal and all(isinstance(choice, int) for choice in get_args(base)):
        return int(text)
    return text


def _base(kind: Any) -> Any:
    return get_args(kind)[0] if _meta(kind) else kind


def _sentence(error: Exception, kind: Any) -> str:
    meta = _meta(kind)
    if meta is None or not meta.description:
        return str(error)
    return meta.description if "regex" in str(error) else f"{error} ({meta.description})"


def _meta(kind: Any) -> msgspec.Meta | None:
    """Returns an `Annotated` type's innermost description and its unit, merged, or None."""
    found = [part for part in getattr(kind, "__metadata__", ()) if isinstance(part, msgspec.Meta)]
    if not found:
        return None
    description = next((part.description for part in reversed(found) if part.description), None)
    extra = next((part.extra for part in found if part.extra), None)
    return msgspec.Meta(description=description, extra=extra)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)
