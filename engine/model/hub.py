"""From what the user called the model to a directory: one that is there, or a download from the Hugging Face hub."""

import re
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from tqdm.auto import tqdm

from core.errors import ModelError
from core.status import Progress

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
"""Never pickled weights (*.bin, *.pt), never code."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def locate(model: str, progress: Progress) -> Path:
    """The directory of `model`, downloaded first where it is a hub id and no directory of that name exists.

    Raises `ModelError` for a missing directory and for a download that fails.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists():
        raise ModelError(f"{model} is a file; expected a model directory in Hugging Face format or a hub id")
    if HUB_ID.fullmatch(model) is None:
        raise ModelError(f"there is no model directory {model}")
    return _download(model, progress)


def _download(model: str, progress: Progress) -> Path:
    progress("downloading", 0.0)
    try:
        directory = snapshot_download(model, allow_patterns=list(PATTERNS), tqdm_class=_bars(progress))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{model} is not a directory, and cannot be fetched from the hub: {reason}") from error
    progress("downloading", 100.0)
    return Path(directory)


def _bars(progress: Progress) -> type[Any]:
    """A progress bar that draws nothing, and reports the share of bytes that are here."""
    reported = 0.0

    def display(bar: Any, *args: Any, **kwargs: Any) -> None:
        """Called where tqdm would draw. The hub also has bars that count files, and totals that grow on the way."""
        nonlocal reported
        if bar.unit == "B" and bar.total:
            reported = max(reported, min(100.0, 100.0 * bar.n / bar.total))
            progress("downloading", reported)

    return type("Bar", (tqdm,), {"display": display})
