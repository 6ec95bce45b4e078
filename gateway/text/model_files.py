"""The few files of a model that the gateway reads, from a directory or from the Hugging Face hub; never the weights."""

import json
from pathlib import Path
from typing import Any

from core.errors import ModelError
from core.model_location import locate

FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
]


def locate_files(model: str) -> Path:
    """Returns the directory with `FILES`, downloaded first if `model` is a hub id. Raises `ModelError`."""
    return locate(model, patterns=FILES)


def read_object(directory: Path, name: str, required: bool = False) -> dict[str, Any]:
    """Returns a file of JSON as a dictionary, empty if there is no file.

    Raises `ModelError` if it is broken, or if it is `required` and not there.
    """
    try:
        found = json.loads((directory / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise ModelError(f"--model: {directory} has no {name}") from None
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"--model: {directory / name} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"--model: {directory / name} is not a JSON object")
    return found


def chat_template(directory: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """Returns the chat template's source, or None. Its own file wins over the tokenizer's config, as in transformers.

    Raises `ModelError` if a file is broken.
    """
    try:
        return (directory / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise ModelError(f"--model: {directory / 'chat_template.jinja'} cannot be read: {error}") from None
    found = tokenizer_config.get("chat_template") or read_object(directory, "chat_template.json").get("chat_template")
    return found if isinstance(found, str) else _named(found, "default")


def tool_template(tokenizer_config: dict[str, Any]) -> str | None:
    """Returns the source of a template that is for chats with tools alone, or None."""
    return _named(tokenizer_config.get("chat_template"), "tool_use")


def _named(templates: Any, name: str) -> str | None:
    """Returns one of several templates."""
    if not isinstance(templates, list):
        return None
    named = {entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)}
    found = named.get(name)
    return found if isinstance(found, str) else None
