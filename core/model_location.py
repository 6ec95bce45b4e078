"""Finds a model: in a directory of this host, or on the Hugging Face hub, from where it is downloaded."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.errors import ModelError
from core.gguf.unpacking import SHARD, unpacked
from core.process.status import Progress

HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w.-]+))?")
"""Behind a colon stands which of a repository's GGUF files is meant: its name, or a part of it such as Q4_K_M."""

WHOLE_MODEL = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
"""File names that are downloaded: never pickled weights (*.bin, *.pt), and code only of who is trusted."""
CODE = ("*.py",)


def directory_of(model: str, option: str = "--model") -> Path | None:
    """Returns the directory that `option` names, or None for a hub id. A directory wins over a hub id of its name.

    Of a GGUF file, and of a directory that has but one, it is where the model is described. Raises `ModelError` for
    what is neither, and for a GGUF file that is broken or not supported.
    """
    path = Path(model).expanduser()
    if model and path.is_dir():
        return _described(path.resolve())
    if model and path.is_file() and path.suffix == ".gguf":
        return unpacked(path)
    if model and path.exists():
        raise ModelError(f"{option}: {model!r}: is a file; give the directory that holds config.json, or a .gguf")
    if HUB_ID.fullmatch(model) is None:
        raise ModelError(f"{option}: {model!r}: there is no such directory, and a hub id looks like owner/name")
    return None


def locate(model: str, progress: Progress = lambda stage, percent: None, patterns: Sequence[str] = WHOLE_MODEL) -> Path:
    """Returns the directory of `model`. Of a hub id it downloads the files that match `patterns` first.

    Raises `ModelError` for what is neither a directory nor a hub id, and for a download that fails.
    """
    return directory_of(model) or _download(model, progress, patterns)


def _download(model: str, progress: Progress, patterns: Sequence[str]) -> Path:
    # Imported here because a directory, the usual case, needs nothing of it, and it takes half a second.
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    match = HUB_ID.fullmatch(model)
    assert match is not None
    repository, wanted = match.groups()
    progress("downloading", 0.0)
    try:
        names = _wanted(list(patterns), wanted)
        directory = Path(snapshot_download(repository, allow_patterns=names, tqdm_class=_bars(progress)))
        if wanted is None and not (directory / "config.json").is_file():
            only = _chosen(HfApi().list_repo_files(repository), model)
            snapshot_download(repository, allow_patterns=only, tqdm_class=_bars(progress))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"--model: {model!r}: is no directory, and cannot be fetched from the hub: {reason}"
        ) from error
    progress("downloading", 100.0)
    if wanted is None:
        return _described(directory)
    here = [str(path.relative_to(directory)) for path in directory.rglob("*.gguf")]
    return unpacked(directory / _chosen([name for name in here if wanted in name], model)[0])


def _wanted(patterns: list[str], wanted: str | None) -> list[str]:
    if wanted is None:
        return patterns
    if part := SHARD.fullmatch(wanted):
        return [f"{part[1]}-*-of-{part[3]}.gguf"]
    return [wanted if wanted.endswith(".gguf") else f"*{wanted}*.gguf"]


def _described(directory: Path) -> Path:
    """Returns a directory that has a model in Hugging Face's format, or of the only GGUF file in it, where that is."""
    if any(directory.glob("*.safetensors")) or not any(directory.glob("*.gguf")):
        return directory
    return unpacked(directory / _chosen([path.name for path in directory.glob("*.gguf")], str(directory))[0])


def _chosen(names: Sequence[str], model: str) -> list[str]:
    """Returns the files of the only GGUF model among some, the first first. Raises `ModelError` if there is no such."""
    models: dict[str, list[str]] = {}
    for name in sorted(name for name in names if name.endswith(".gguf")):
        match = SHARD.fullmatch(name)
        models.setdefault(match[1] if match else name, []).append(name)
    if len(models) != 1:
        found = f"{len(models)} GGUF models ({', '.join(list(models)[:4])}); name one" if models else "no GGUF file"
        raise ModelError(f"--model: {model!r}: has {found}")
    return next(iter(models.values()))


def _bars(progress: Progress) -> type[Any]:
    """Makes a class of progress bars that draw nothing, and report the share of bytes that are here."""
    from tqdm.auto import tqdm

    reported = 0.0

    def display(bar: Any, *args: Any, **kwargs: Any) -> None:
        """Is called where tqdm would draw. The hub also has bars that count files, and totals that grow on the way."""
        nonlocal reported
        if bar.unit == "B" and bar.total:
            reported = max(reported, min(100.0, 100.0 * bar.n / bar.total))
            progress("downloading", reported)

    return type("Bar", (tqdm,), {"display": display})
