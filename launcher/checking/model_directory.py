"""Checks a model's files before a service starts, so that a broken download is an error sentence."""

import json
from pathlib import Path

from checkpoints.gguf.unpacking import GGUF_INDEX
from checkpoints.model_location import directory_of
from checkpoints.vocabulary.files import TokenizerMissing, tokenizer_file
from checkpoints.weight_files import WeightsMissing, present_weight_files
from checkpoints.weight_sizes import read_header
from contracts.errors import ConfigError


def checked(model: str, option: str = "--model") -> Path | None:
    """Returns the model directory that `option` names, after checking its files, or None for a hub id.

    Raises `ModelError` for a value that is neither, `ConfigError` for a broken directory.
    """
    directory = directory_of(model, option)
    if directory is not None:
        _check_directory(directory, option)
    return directory


def _check_directory(directory: Path, option: str) -> None:
    _read_object(directory, "config.json", option)
    try:
        tokenizer = tokenizer_file(directory).name
    except TokenizerMissing as error:
        raise ConfigError(option, str(directory), error.why) from None
    if tokenizer.endswith(".json"):
        _read_object(directory, tokenizer, option)
    if (directory / GGUF_INDEX).is_file():
        return  # unpacked from a GGUF file, whose tensors were checked then
    try:
        files = present_weight_files(directory)
    except WeightsMissing as error:
        raise ConfigError(option, str(directory), error.why) from None
    for path in files:
        _check_weights(directory, path.name, option)


def _read_object(directory: Path, name: str, option: str) -> dict[str, object]:
    try:
        value = json.loads((directory / name).read_bytes())
    except FileNotFoundError:
        raise ConfigError(option, str(directory), f"has no {name}") from None
    except OSError as error:
        raise ConfigError(option, str(directory), f"{name} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(option, str(directory), f"{name} is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(option, str(directory), f"{name} is not a JSON object")
    return value


def _check_weights(directory: Path, name: str, option: str) -> None:
    path = directory / name
    try:
        tensors, begin = read_header(path)
    except EOFError:
        raise ConfigError(option, str(directory), f"{name} is not a safetensors file, or was cut off") from None
    except FileNotFoundError:
        raise ConfigError(option, str(directory), f"lacks {name}, which its index names") from None
    except OSError as error:
        raise ConfigError(option, str(directory), f"{name} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(option, str(directory), f"{name} has a broken safetensors header") from None
    missing = begin + max((tensor.end for tensor in tensors.values()), default=0) - path.stat().st_size
    if missing > 0:
        raise ConfigError(option, str(directory), f"{name} was cut off: {missing} bytes are missing")
