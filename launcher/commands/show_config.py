"""Prints the effective settings of `baton up` and their sources, as a settings file (`baton config`)."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.cli import CONFIG_FILE, ParsedConfig, flat_values, parse_with_sources
from infra.option_fields import OptionField, option_fields
from infra.redis.clients import redacted
from infra.setting_sources import ENVIRONMENT_PREFIX, variable_of
from infra.spelling import suggestion
from launcher.options import ShownConfig
from launcher.refusal import refusing

SOURCE_COLUMN = 40


@refusing
def show_config(arguments: Sequence[str]) -> int:
    """Prints the settings; returns the exit status: 2 for bad input."""
    print("\n".join(settings_lines(parse_with_sources(ShownConfig, arguments, "baton config", os.environ), os.environ)))
    return 0


def settings_lines(parsed: ParsedConfig[ShownConfig], environment: Mapping[str, str]) -> Iterator[str]:
    """Yields lines of TOML. A setting that each target decides is a comment, and a password in a URL is hidden."""
    fields, values = list(option_fields(ShownConfig)), flat_values(parsed.config)
    group = ""
    for field in fields:
        if field.group != group:
            yield f"\n# {field.group}" if group else f"# {field.group}"
            group = field.group
        source = parsed.sources.get(field.name, "default")
        yield f"{_line(field, values[field.name]):<{SOURCE_COLUMN}} # {source}"
    known = {variable_of(field.name) for field in fields} | {variable_of(CONFIG_FILE)}
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            yield f"# {name}: no option of ./baton up{suggestion(name, known)}"


def _line(field: OptionField, value: Any) -> str:
    name = field.option.removeprefix("--")
    if value is None:
        return f"# {name}: decided at the start"
    if field.name == "redis":
        value = redacted(value)
    # JSON spells strings, numbers, booleans and lists of strings as TOML does.
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"
