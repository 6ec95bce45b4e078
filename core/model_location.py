"""Finds a model: in a directory of this host, or on the Hugging Face hub, from where it is downloaded."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.errors import ModelError
from core.status import Progress

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

WHOLE_MODEL = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
"""File names that are downloaded: never pickled weights (*.bin, *.pt), and code only of who is trusted."""
CODE = ("*.py",)


def directory_of(model: str) -> Path | None:
    """Returns the directory that `--model` names, or None for a hub id. A directory wins over a hub id of its name.

    Raises `ModelError` for what is neither.
    """
    path = Path(model).expanduser()
    if model and path.is_dir():
        return path.resolve()
    if model and path.exists():
        raise ModelError(f"--model: {model!r}: is a file; give the directory that holds config.json")
    if HUB_ID.fullmatch(model) is None:
        raise ModelError(f"--model: {model!r}: there is no such directory, and a hub id looks like owner/name")
    return None


def locate(model: str, progress: Progress = lambda stage, percent: None, patterns: Sequence[str] = WHOLE_MODEL) -> Path:
    """Returns the directory of `model`. Of a hub id it downloads the files that match `patterns` first.

    Raises `ModelError` for what is neither a directory nor a hub id, and for a download that fails.
    """
    return directory_of(model) or _download(model, progress, patterns)


def _download(model: str, progress: Progress, patterns: Sequence[str]) -> Path:
    # Imported here because a directory, the usual case, needs nothing of it, and it takes half a second.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    progress("downloading", 0.0)
    try:
        directory = snapshot_download(model, allow_patterns=list(patterns), tqdm_class=_bars(progress))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"--model: {model!r}: is no directory, and cannot be fetched from the hub: {reason}"
        ) from error
    progress("downloading", 100.0)
    return Path(directory)


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
