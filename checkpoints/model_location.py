"""Finds a model in a directory of this host, or downloads it from the Hugging Face hub."""

import re
from collections.abc import Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from checkpoints.gguf.unpacking import SHARD_NAME_REGEX, unpacked
from checkpoints.vocabulary.files import SENTENCEPIECE_FILE, TIKTOKEN_FILE
from checkpoints.weight_files import SINGLE_FILE, weight_files, without_weights
from contracts.errors import ModelError
from infra.process.status import Progress

HUB_ID_REGEX = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w.-]+))?")
"""A hub id; after an optional colon, the name of a GGUF file or a part of it, such as Q4_K_M."""

DESCRIPTION_PATTERNS = ("*.json", "*.jinja", SENTENCEPIECE_FILE, TIKTOKEN_FILE)
"""Files that are downloaded besides the weights, which `checkpoints.weight_files` lists."""
CODE_PATTERNS = ("*.py",)
"""Files with code, downloaded only if it is trusted."""
POOLING_PATTERNS = ("*_Pooling/config.json", "*_LogitScore/config.json")
"""Files of sentence-transformers' modules, which modules.json names."""
IGNORED_PATTERNS = ("*/*.json", "consolidated*")
"""Files that repeat the model in another format."""


def directory_of(model: str, option: str = "--model") -> Path | None:
    """Returns the directory that `option` names, or None for a hub id. A directory wins over a hub id of that name.

    For a GGUF file, or a directory with only one GGUF model, returns the directory that describes it. Raises
    `ModelError` for other values, and for a GGUF file that is broken or not supported.
    """
    path = Path(model).expanduser()
    if model and path.is_dir():
        return _described(path.resolve())
    if model and path.is_file() and path.suffix == ".gguf":
        return unpacked(path)
    if model and path.exists():
        raise ModelError(f"{option}: {model!r}: is a file; give the directory that holds config.json, or a .gguf")
    if HUB_ID_REGEX.fullmatch(model) is None:
        raise ModelError(f"{option}: {model!r}: there is no such directory, and a hub id looks like owner/name")
    return None


def locate(
    model: str,
    progress: Progress = lambda stage, percent: None,
    patterns: Sequence[str] = DESCRIPTION_PATTERNS,
    weights: bool = True,
) -> Path:
    """Returns the directory of `model`. For a hub id, downloads the files that match `patterns`, and the `weights`.

    Raises `ModelError` if `model` is neither a directory nor a hub id, or the download fails.
    """
    return directory_of(model) or _download(model, progress, patterns, weights)


def downloaded(model: str) -> Path | None:
    """Returns the directory with this host's copy of a hub id's files; None if it has no config.json."""
    from huggingface_hub import try_to_load_from_cache

    match = HUB_ID_REGEX.fullmatch(model)
    found = try_to_load_from_cache(match[1], "config.json") if match and match[2] is None else None
    return Path(found).parent if isinstance(found, str) else None


def _download(model: str, progress: Progress, patterns: Sequence[str], weights: bool) -> Path:
    # Imported here because it takes half a second, and a directory, the usual case, does not need it.
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    match = HUB_ID_REGEX.fullmatch(model)
    assert match is not None
    repository, wanted = match.groups()
    progress("downloading", 0.0)
    fetch = partial(snapshot_download, repository, tqdm_class=_bars(progress))
    try:
        if wanted is not None:
            whole = Path(fetch(allow_patterns=_wanted(wanted)))
            names = [str(path.relative_to(whole)) for path in whole.rglob("*.gguf")]
            return unpacked(whole / _chosen([name for name in names if wanted in name], model)[0])
        quiet = _bars(
            lambda stage, percent: None
        )  # not shown: these few megabytes would reach 100 % before the weights begin
        directory = Path(fetch(allow_patterns=[*patterns], ignore_patterns=[*IGNORED_PATTERNS], tqdm_class=quiet))
        fetch = partial(fetch, revision=directory.name)  # the same commit
        if not (directory / "config.json").is_file():
            fetch(allow_patterns=_chosen(HfApi().list_repo_files(repository, revision=directory.name), model))
        if (directory / "modules.json").is_file():  # in folders of their own, which are ignored above
            fetch(allow_patterns=[*POOLING_PATTERNS])
        if (directory / "config.json").is_file() and weights:
            files = weight_files(directory)
            fetch(allow_patterns=sorted(files))
            if files == {SINGLE_FILE: set()} and not (directory / SINGLE_FILE).is_file():
                names = HfApi().list_repo_files(repository, revision=directory.name)
                raise ModelError(f"--model: {model!r}: the repository {without_weights(names)}")
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"--model: {model!r}: is no directory, and cannot be fetched from the hub: {reason}"
        ) from error
    progress("downloading", 100.0)
    return _described(directory)


def _wanted(wanted: str) -> list[str]:
    """Returns the patterns for all shards of a GGUF model."""
    if part := SHARD_NAME_REGEX.fullmatch(wanted):
        return [f"{part[1]}-*-of-{part[3]}.gguf"]
    return [wanted if wanted.endswith(".gguf") else f"*{wanted}*.gguf"]


def _described(directory: Path) -> Path:
    """Returns `directory` if it is in Hugging Face's format, else the description of its only GGUF model."""
    if any(directory.glob("*.safetensors")) or not any(directory.glob("*.gguf")):
        return directory
    return unpacked(directory / _chosen([path.name for path in directory.glob("*.gguf")], str(directory))[0])


def _chosen(names: Sequence[str], model: str) -> list[str]:
    """Returns the files, in order, of the only GGUF model in `names`. Raises `ModelError` for none or several."""
    models: dict[str, list[str]] = {}
    for name in sorted(name for name in names if name.endswith(".gguf")):
        match = SHARD_NAME_REGEX.fullmatch(name)
        models.setdefault(match[1] if match else name, []).append(name)
    if len(models) != 1:
        found = f"{len(models)} GGUF models ({', '.join(list(models)[:4])}); name one" if models else "no GGUF file"
        raise ModelError(f"--model: {model!r}: has {found}")
    return next(iter(models.values()))


def _bars(progress: Progress) -> type[Any]:
    """Returns a class of progress bars that report the downloaded share of bytes instead of drawing."""
    from tqdm.auto import tqdm

    reported = 0.0

    class Bar(tqdm):  # type: ignore[misc]
        """Reports instead of drawing. The hub also makes bars that count files, and totals that grow."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"file": StringIO()})  # closing writes a line

        def display(self, *args: Any, **kwargs: Any) -> None:
            nonlocal reported
            if self.unit == "B" and self.total and not self.disable:  # a bar that is closed late says nothing
                reported = max(reported, min(100.0, 100.0 * self.n / self.total))
                progress("downloading", reported)

    return Bar
