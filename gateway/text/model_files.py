"""Finds the files of a model that the gateway reads, in a directory or on the Hugging Face hub; never weights."""

from pathlib import Path
from typing import Any

from checkpoints.model_location import locate
from checkpoints.vocabulary.files import TOKENIZER_FILES as TOKENIZERS
from checkpoints.vocabulary.settings import SETTINGS_FILES as SETTINGS
from checkpoints.vocabulary.settings import read_object as read_json
from contracts.errors import ModelError

MODEL_FILES = [
    "config.json",
    "generation_config.json",
    *TOKENIZERS,
    *SETTINGS,
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
]


def locate_files(model: str) -> Path:
    """Returns the directory with `MODEL_FILES`, which are downloaded if `model` is a hub id. Raises `ModelError`."""
    return locate(model, patterns=MODEL_FILES, weights=False)


def read_object(directory: Path, name: str, required: bool = False) -> dict[str, Any]:
    """Returns a JSON file as a dictionary, empty if the file is missing.

    Raises `ModelError` if it is broken, or `required` and missing.
    """
    if required and not (directory / name).exists():
        raise ModelError(f"--model: {directory} has no {name}")
    return read_json(directory / name)


def chat_templates(directory: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Returns the sources of a model's chat templates by name: `default`, and `tool_use` for chats with tools.

    As in transformers, template files take precedence over the tokenizer's config, and this over a processor's file.
    Raises `ModelError` if a file is broken.
    """
    files = [*(directory / "additional_chat_templates").glob("*.jinja"), directory / "chat_template.jinja"]
    found = {"default" if path == files[-1] else path.stem: _source(path) for path in sorted(files) if path.is_file()}
    if found:
        return found
    given = tokenizer_config.get("chat_template") or read_object(directory, "chat_template.json").get("chat_template")
    if isinstance(given, list):
        given = {entry.get("name"): entry.get("template") for entry in given if isinstance(entry, dict)}
    named = given if isinstance(given, dict) else {"default": given}
    return {name: source for name, source in named.items() if isinstance(source, str)}


def _source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"--model: {path} cannot be read: {error}") from None
