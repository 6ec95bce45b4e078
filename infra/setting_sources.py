"""Reads settings from a TOML file (`kv-memory`) and from the environment (`BATON_KV_MEMORY`)."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from contracts.errors import ConfigError
from infra.option_fields import OptionField
from infra.spelling import suggestion

ENVIRONMENT_PREFIX = "BATON_"
COMMAND_LINE = "command line"


class Setting(NamedTuple):
    """The text of one setting."""

    text: str | list[str]  # a list for an option that may be repeated
    name: str  # as the user spelled it: --kv-memory, BATON_KV_MEMORY, or kv-memory with its file
    source: str  # the command line, the environment variable, or the file


def from_environment(fields: Iterable[OptionField], environment: Mapping[str, str]) -> dict[str, Setting]:
    """Returns the settings of the environment by field. Commas divide the values of an option that may be repeated."""
    found = {}
    for field in fields:
        variable = variable_of(field.name)
        if variable in environment:
            text = environment[variable]
            found[field.name] = Setting(text.split(",") if field.repeats else text, variable, variable)
    return found


def variable_of(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def from_file(fields: Iterable[OptionField], path: str) -> dict[str, Setting]:
    """Returns the settings of a TOML file by field. Raises `ConfigError` for a file or a key that cannot be used."""
    try:
        values = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = getattr(error, "strerror", None) or f"is no TOML: {error}"
        raise ConfigError("--config", path, why) from None
    known = {field.name.replace("_", "-"): field for field in fields}
    found = {}
    for key, value in values.items():
        name = f"{path}: {key}"
        if (field := known.get(key.replace("_", "-"))) is None:
            raise ConfigError(name, None, f"no such option{suggestion(key, known)}")
        found[field.name] = Setting(_text(name, value, field.repeats), name, path)
    return found


def _text(name: str, value: Any, repeats: bool) -> str | list[str]:
    """Spells a TOML value as the command line would."""
    match value:
        case bool():
            text = str(value).lower()
        case str() | int() | float():
            text = str(value)
        case list() if repeats and all(isinstance(each, str) for each in value):
            return value
        case _:
            expected = "a list of strings" if repeats else "a string, a number, true or false"
            raise ConfigError(name, value, f"expected {expected}")
    return [text] if repeats else text
