"""Lists the files of a model's weights, for the download, the check before a start, and loading.

Many repositories repeat the weights for their makers' own code, in `original/` and `consolidated*.safetensors`. Only
the files listed here are read, so only they are downloaded.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from contracts.errors import ModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth")


class WeightsMissing(ModelError):
    """A directory lacks weight files, or has a broken index; `why` is the message without the path."""

    def __init__(self, directory: Path, why: str) -> None:
        super().__init__(f"{directory} {why}")
        self.why = why


def weight_files(directory: Path) -> dict[str, set[str]]:
    """Returns the names of the files, each with its tensors in the index (empty without an index).

    The files need not exist yet. Raises `WeightsMissing` for a broken index.
    """
    try:
        source = (directory / INDEX_FILE).read_bytes()
    except FileNotFoundError:
        return {SINGLE_FILE: set()}
    except OSError as error:
        raise WeightsMissing(directory, f"has a {INDEX_FILE} that cannot be read: {error.strerror}") from None
    try:
        places = json.loads(source)["weight_map"]
        files: dict[str, set[str]] = {}
        for tensor, file in places.items():
            files.setdefault(file, set()).add(tensor)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WeightsMissing(
            directory, f"has a {INDEX_FILE} without a weight_map: not an index of safetensors"
        ) from None
    if not files:
        raise WeightsMissing(directory, f"has a {INDEX_FILE} whose weight_map is empty")
    for file in files:
        if not isinstance(file, str) or Path(file).name != file:
            raise WeightsMissing(directory, f"has a {INDEX_FILE} that points outside of its directory: {file}")
    return files


def present_weight_files(directory: Path) -> dict[Path, set[str]]:
    """Returns `weight_files` by path. Raises `WeightsMissing` also for missing files."""
    files = weight_files(directory)
    missing = sorted(file for file in files if not (directory / file).is_file())
    if missing == [SINGLE_FILE] and not files[SINGLE_FILE]:
        raise WeightsMissing(directory, without_weights(path.name for path in directory.iterdir()))
    if missing:
        raise WeightsMissing(directory, f"lacks {missing[0]}, which its index names ({len(missing)} missing)")
    return {directory / file: tensors for file, tensors in files.items()}


def without_weights(names: Iterable[str]) -> str:
    """Returns an error text for a directory or repository without weights, from the `names` of its files."""
    there = sorted(names)
    lacks = f"has no {SINGLE_FILE} and no {INDEX_FILE}"
    if own := next((name for name in there if name.startswith("consolidated") and name.endswith(".safetensors")), None):
        return f"{lacks}: {own} has the weights under their maker's own names; transformers' names are what is read"
    if pickle := next((name for name in there if name.endswith(PICKLE_SUFFIXES)), None):
        return f"{lacks}; {pickle} is a pickle, and pickled weights are not read"
    if any(name.endswith(".gguf") for name in there):
        return f"{lacks}; of its GGUF files one is named behind a colon, such as owner/name:Q4_K_M"
    return lacks
