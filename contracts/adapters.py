"""Adapters as seen without torch: names, directories, and those of a worker.

An adapter is a low-rank change of a model's weights (LoRA, https://arxiv.org/abs/2106.09685), in a directory in PEFT's
format. Clients know it by its name; between gateways and workers it is known by the digest of its content, so that
other weights under the same name are another adapter.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from contracts.errors import AdapterError, ConfigError

ADAPTER_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@+-]{0,127}")


class AdapterSource(Struct, frozen=True):
    """An adapter's name and directory."""

    name: str
    path: str


class HeldAdapter(Struct, frozen=True):
    """An adapter that a worker has, or could not load."""

    name: str
    root: str  # last part of its directory
    digest: str = ""  # of its content, 32 hexadecimal digits; empty if it could not be loaded
    fixed: bool = False  # given by `--lora`, so it stays
    leaving: bool = False  # unloaded: running requests continue, new requests are refused
    error: str = ""  # why it could not be loaded


def check_name(name: str) -> None:
    """Raises `AdapterError` for an invalid name."""
    if not ADAPTER_NAME_PATTERN.fullmatch(name):
        raise AdapterError(f"{name[:64]!r} is no adapter's name: 1 to 128 letters, digits and _./:@+-, a letter first")


def parse_sources(given: Sequence[str], taken: Sequence[str] = ()) -> list[AdapterSource]:
    """Parses the values of `--lora`, each `name=DIR`. Raises `ConfigError`, also for a repeated or `taken` name."""
    found: dict[str, AdapterSource] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise ConfigError("--lora", text, "it is name=DIR, such as sql=/adapters/sql")
        try:
            check_name(name)
        except AdapterError as error:
            raise ConfigError("--lora", text, str(error)) from None
        if name in found or name in taken:
            raise ConfigError(
                "--lora", text, f"the name {name!r} is taken by {'another' if name in found else 'the model'}"
            )
        found[name] = AdapterSource(name, path)
    return list(found.values())


def directory_inside(root: str, path: str) -> Path:
    """Returns the directory of an absolute `path`, or of one below `root`, with links resolved.

    Raises `AdapterError` for a directory outside of `root`, and if there is no root.
    """
    if not root:
        raise AdapterError(f"the adapter's path {path!r} is refused: this server was started without --lora-root")
    whole = Path(root).resolve()
    try:
        found = (whole / path).resolve()
    except (OSError, ValueError, RuntimeError):  # a loop of links, or a null character
        raise AdapterError(f"the adapter's path {path!r} cannot be followed") from None
    if not found.is_relative_to(whole) or found == whole:
        raise AdapterError(f"the adapter's path {path!r} is not below --lora-root")
    return found
