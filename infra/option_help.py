"""Help texts of commands: one page with the common options, and a list of all options in groups."""

import re
import shutil
import textwrap
from collections.abc import Iterable
from inspect import getdoc

from msgspec import Struct

from infra.option_fields import OptionField, option_fields

MAX_COLUMNS = 100
DESCRIPTION_COLUMN = 26
BRIEF_END = re.compile(r"[;:.]\s")
"""Ends the part of a description that a page shows."""


def common_options(config: type[Struct]) -> tuple[str, ...]:
    """Returns the fields that `config.COMMON_OPTIONS` names, in its order; without it all options are common."""
    return getattr(config, "COMMON_OPTIONS", ())


def help_page(config: type[Struct], prog: str, settings: bool) -> str:
    """Describes the common options in few words. `settings`: the command reads a settings file and the environment."""
    fields = {field.name: field for field in option_fields(config)}
    common = common_options(config)
    if not common:
        return help_all(config, prog, settings)
    lines = [*_head(config, prog), ""]
    lines += _described([fields[name] for name in common], brief=True)
    lines += ["", *_wrapped(f"--help-all lists all {len(fields)} options.{_settings_note(settings)}")]
    return "\n".join(lines) + "\n"


def help_all(config: type[Struct], prog: str, settings: bool) -> str:
    """Describes all options, in groups by the struct that defines them."""
    groups: dict[str, list[OptionField]] = {}
    for field in option_fields(config):
        groups.setdefault(field.group, []).append(field)
    own = (config.__doc__ or "").partition("\n")[0].rstrip(".")
    lines = _head(config, prog)
    for group, fields in groups.items():
        lines += [
            "",
            *([] if group == own and len(groups) == 1 else ["This command:" if group == own else f"{group}:"]),
        ]
        lines += _described(fields, brief=False)
    if settings:
        lines += ["", *_wrapped(_settings_note(settings).strip())]
    return "\n".join(lines) + "\n"


def _settings_note(settings: bool) -> str:
    if not settings:
        return ""
    return (
        ' Each may also stand in the file of --config FILE (TOML, such as kv-memory = "4GiB") or in the environment'
        " (BATON_KV_MEMORY=4GiB); the command line wins over the environment, and the environment over the file."
    )


def _head(config: type[Struct], prog: str) -> list[str]:
    text = getdoc(config) or ""
    called = f"./{prog}" if prog.startswith("baton ") else f"python -m {prog.removeprefix('python -m ')}"
    return [f"usage: {called} [OPTIONS]", "", *(line for part in text.splitlines() for line in _wrapped(part) or [""])]


def _described(fields: Iterable[OptionField], brief: bool) -> list[str]:
    return [line for field in fields for line in _entry(field, brief)]


def _entry(field: OptionField, brief: bool) -> list[str]:
    left = f"  {field.option} {field.metavar}".rstrip()
    text = field.description
    if brief:
        text = BRIEF_END.split(text, maxsplit=1)[0]
    if not field.required and field.default not in ("", 0, None, (), False) and "default" not in field.description:
        text += f" (default {field.default})"
    lines = _wrapped(text, DESCRIPTION_COLUMN)
    if len(left) < DESCRIPTION_COLUMN - 1:
        return [left.ljust(DESCRIPTION_COLUMN) + lines[0].lstrip(), *lines[1:]]
    return [left, *lines]


def _wrapped(text: str, indent: int = 0) -> list[str]:
    columns = min(MAX_COLUMNS, max(60, shutil.get_terminal_size((MAX_COLUMNS, 24)).columns))
    space = " " * indent
    return textwrap.wrap(text, columns, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)
