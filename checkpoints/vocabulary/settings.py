"""Reads special tokens from the files beside a tokenizer, with transformers' order of precedence.

tokenizer_config.json names them, and lists added tokens by id. If it lists none, special_tokens_map.json and
added_tokens.json of older models count.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from checkpoints.vocabulary.files import SENTENCEPIECE_FILE, TEKKEN_FILE, TokenizerMissing, tokenizer_file
from contracts.errors import ModelError

TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
SETTINGS_FILES = (TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE)
EXTRA_TOKEN_KEYS = ("extra_special_tokens", "additional_special_tokens")
LLAMA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
DEFAULT_TOKENS_BY_FILE = {SENTENCEPIECE_FILE: LLAMA_TOKENS, TEKKEN_FILE: LLAMA_TOKENS | {"pad_token": "<pad>"}}
"""Default special tokens, by the file of the vocabulary."""
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def settings_of(directory: Path) -> dict[str, Any]:
    """Returns tokenizer_config.json, completed from older files in its format. Raises `ModelError`."""
    settings = _names_of(directory) | read_object(directory / TOKENIZER_CONFIG_FILE)
    if "added_tokens_decoder" in settings:
        return settings
    settings |= {key: _as_special(value) for key, value in read_object(directory / SPECIAL_TOKENS_FILE).items()}
    special = {_text(value) for key, value in settings.items() if key.endswith("_token")}
    special |= {_text(value) for value in _extra(settings)}
    listed = {
        str(id): {"content": text, "normalized": text not in special, "special": text in special}
        for text, id in read_object(directory / ADDED_TOKENS_FILE).items()
    }
    return settings | ({"added_tokens_decoder": listed} if listed else {})


def _names_of(directory: Path) -> dict[str, Any]:
    try:
        return dict(DEFAULT_TOKENS_BY_FILE.get(tokenizer_file(directory).name, {}))
    except TokenizerMissing:
        return {}


def named_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Returns the special tokens by name, such as `bos_token`, for templates."""
    extra: dict[str, Any] = next((settings[key] for key in EXTRA_TOKEN_KEYS if isinstance(settings.get(key), dict)), {})
    named = {key: value for key, value in settings.items() if key.endswith("_token")} | extra
    return {name: text for name, value in named.items() if isinstance(text := _text(value), str)}


def listed_tokens(settings: dict[str, Any]) -> dict[int, AddedToken]:
    """Returns the added tokens that tokenizer_config.json lists, by id, lowest first."""
    named, listed = set(named_tokens(settings).values()), settings.get("added_tokens_decoder") or {}
    return {int(id): _token(entry, named) for id, entry in sorted(listed.items(), key=lambda each: int(each[0]))}


def added_tokens(settings: dict[str, Any], there: Collection[AddedToken]) -> list[AddedToken]:
    """Returns the added tokens that a tokenizer with tokens `there` lacks, ordered by id."""
    known = {repr(token) for token in there}
    # A token that is there with other flags gets the flags in the settings.
    found = [token for token in listed_tokens(settings).values() if repr(token) not in known]
    texts = {str(token) for token in (*there, *found)}
    others = [*(value for key, value in settings.items() if key.endswith("_token")), *_extra(settings)]
    for entry in others:
        if isinstance(text := _text(entry), str) and text and text not in texts:
            texts.add(text)
            found.append(_token(entry, {text}))
    return found


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object, empty if there is no file. Raises `ModelError` if it is broken."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"--model: {path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"--model: {path} is not a JSON object")
    return found


def _extra(settings: dict[str, Any]) -> list[Any]:
    found: Any = next((settings[key] for key in EXTRA_TOKEN_KEYS if settings.get(key)), [])
    return list(found.values() if isinstance(found, dict) else found)


def _text(entry: Any) -> Any:
    return entry.get("content") if isinstance(entry, dict) else entry


def _as_special(value: Any) -> Any:
    return {**value, "special": True} if isinstance(value, dict) and "content" in value else value


def _token(entry: Any, special: set[str]) -> AddedToken:
    """Makes a token from its entry in a file; a token with only a text is special."""
    if not isinstance(text := _text(entry), str):
        raise TypeError(f"{entry!r} is no token")
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {"special": True}
    flags = {flag: bool(fields[flag]) for flag in TOKEN_FLAGS if flag in fields}
    return AddedToken(text, **flags | ({"special": True} if text in special else {}))
