"""Command-line options from config structs: a field's type, default, limits and help make an option."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct

from contracts.errors import ConfigError
from infra.option_fields import OptionField, is_struct, option, option_fields
from infra.option_help import help_all, help_page
from infra.setting_sources import COMMAND_LINE, Setting, from_environment, from_file, variable_of
from infra.sizes import parse_bytes
from infra.spelling import suggestion

ConfigType = TypeVar("ConfigType", bound=Struct)
CONFIG_FILE = "config"
"""Name of the option with the settings file, and of its environment variable."""


class ParsedConfig(NamedTuple, Generic[ConfigType]):
    """A config, and where its settings are from."""

    config: ConfigType
    sources: dict[str, str]  # of each field that is not at its default: command line, environment variable, or file


def parse(
    config: type[ConfigType], argv: Sequence[str], prog: str, environment: Mapping[str, str] | None = None
) -> ConfigType:
    """Builds `config` from `argv`. Raises `ConfigError` naming the option and its value; `--help` exits with 0.

    With an `environment`, its `BATON_…` variables and the file of `--config` set what `argv` does not.
    """
    return parse_with_sources(config, argv, prog, environment).config


def parse_with_sources(
    config: type[ConfigType], argv: Sequence[str], prog: str, environment: Mapping[str, str] | None
) -> ParsedConfig[ConfigType]:
    """Does what `parse` does, and returns the sources, too."""
    fields = list(option_fields(config))
    parser = _Parser(prog=prog, add_help=False, allow_abbrev=False)
    parser.given = argv
    settings = environment is not None
    parser.add_argument("-h", "--help", action=_Page, text=lambda: help_page(config, prog, settings))
    parser.add_argument("--help-all", action=_Page, text=lambda: help_all(config, prog, settings))
    if settings:
        parser.add_argument(option(CONFIG_FILE))
    for field in fields:
        flag: dict[str, Any] = {"nargs": "?", "const": "true"} if field.base is bool else {}
        parser.add_argument(field.option, dest=field.name, action="append" if field.repeats else "store", **flag)
    known, unknown = parser.parse_known_args(argv)
    if unknown:
        near = suggestion(unknown[0].partition("=")[0], [field.option for field in fields])
        raise ConfigError(unknown[0], " ".join(unknown[1:]) or None, f"no such option{near}; --help-all lists them")
    words = {name: text for name, text in vars(known).items() if text is not None}
    given: dict[str, Setting] = {}
    if environment is not None:
        path = words.pop(CONFIG_FILE, environment.get(variable_of(CONFIG_FILE), ""))
        given = {**(from_file(fields, path) if path else {}), **from_environment(fields, environment)}
    given |= {name: Setting(text, option(name), COMMAND_LINE) for name, text in words.items()}
    missing = [field.option for field in fields if field.required and field.name not in given]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    values = {field.name: _convert(field, given[field.name]) for field in fields if field.name in given}
    return ParsedConfig(_build(config, values), {name: setting.source for name, setting in given.items()})


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
    values = flat_values(config)
    for field in option_fields(type(config)):
        value = values[field.name]
        for each in value if field.repeats else () if value is None else (value,):
            text = str(each).lower() if isinstance(each, bool) else str(each)
            spelled.append(SpelledOption(field.option, text, not field.required and value == field.default))
    return spelled


def words(config: Struct) -> list[str]:
    return [f"{each.option}={each.text}" for each in spell(config) if not each.usual]


def flat_values(config: Struct) -> dict[str, Any]:
    """Returns the values by field, including the fields of nested structs."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        values |= flat_values(value) if is_struct(field.type) else {field.name: value}
    return values


class _Parser(argparse.ArgumentParser):
    """Raises `ConfigError` instead of printing its usage and exiting."""

    given: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        raise ConfigError(self.prog, " ".join(self.given), f"{message}; --help explains")


class _Page(argparse.Action):
    """Prints a help text and exits with 0."""

    def __init__(self, option_strings: Sequence[str], dest: str, text: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> None:
        print(self._text(), end="")
        parser.exit()


def _build(config: type[ConfigType], values: Mapping[str, Any]) -> ConfigType:
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(config):
        if is_struct(field.type):
            made[field.name] = _build(field.type, values)
        elif field.name in values:
            made[field.name] = values[field.name]
    return config(**made)


def _convert(field: OptionField, setting: Setting) -> Any:
    """Converts a setting's text. Of a list, empty texts are dropped; an empty text leaves an open default open."""
    text: Any = setting.text
    if text == "" and field.default is None:
        return None
    try:
        if field.in_bytes:
            return msgspec.convert(parse_bytes(text), field.kind)
        given = [each for each in text if each] if isinstance(text, list) else _plain(field.base, text)
        return msgspec.convert(given, field.kind, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(setting.name, text, _sentence(error, field)) from None


def _plain(base: Any, text: str) -> Any:
    """Converts the text for a `Literal` of integers, for which msgspec accepts no string even in lax mode."""
    if get_origin(base) is Literal and all(isinstance(choice, int) for choice in get_args(base)):
        return int(text)
    return text


def _sentence(error: Exception, field: OptionField) -> str:
    if not field.described:
        return str(error)
    return field.description if "regex" in str(error) else f"{error} ({field.description})"
