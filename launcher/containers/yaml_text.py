"""Writes plain dicts and lists as YAML that is pleasant to read and always the same."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

Value = Any
"""Is what YAML has: mappings with names, lists, texts, numbers, booleans."""


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # which has no types
    """Writes every value where it stands, and lists below their key, further in."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(documents: Sequence[Mapping[str, Value]]) -> str:
    """Returns the documents, one behind another, with their keys in the order in which they were made."""
    text: str = yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        width=120,
        explicit_start=len(documents) > 1,
    )
    return text
