"""Lists the models in this user's cache of the Hugging Face hub (`baton models`): sizes, formats, last use."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from checkpoints.weight_files import WeightsMissing, present_weight_files
from infra.cli import parse
from infra.sizes import format_bytes
from launcher.columns import in_columns
from launcher.refusal import refusing


class ModelsConfig(Struct, frozen=True, kw_only=True):
    """Lists the models in this user's cache of the Hugging Face hub; ./baton pull NAME adds one.

    Example: HF_HOME=/models/huggingface ./baton models
    """


class CachedModel(NamedTuple):
    """A model of the hub on this host."""

    name: str
    size: int  # bytes of all its files
    format: str
    used: float  # time of the last use, in seconds since 1970


@refusing
def models(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 listed, 2 bad input."""
    # Imported here because it takes half a second, which other commands do not need.
    from huggingface_hub import constants

    parse(ModelsConfig, arguments, "baton models")
    cache = Path(constants.HF_HUB_CACHE)
    found = cached_models(cache)
    if not found:
        print(f"{cache} has no models; ./baton pull NAME downloads one")
        return 0
    rows = [("MODEL", "SIZE", "FORMAT", "LAST USED")]
    for each in found:
        used = time.strftime("%Y-%m-%d", time.localtime(each.used))
        rows.append((each.name, format_bytes(each.size), each.format, used))
    print("\n".join(in_columns(rows)))
    return 0


def cached_models(cache: Path) -> list[CachedModel]:
    """Returns the models in a cache, by name."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir(cache).repos
    except CacheNotFound:
        return []
    made = []
    for repo in found:
        if repo.repo_type == "model" and repo.revisions:
            newest = max(repo.revisions, key=lambda revision: revision.last_modified)
            form = checkpoint_format(newest.snapshot_path)
            made.append(CachedModel(repo.repo_id, repo.size_on_disk, form, repo.last_accessed))
    return sorted(made)


def checkpoint_format(directory: Path) -> str:
    """Describes a model's files: `GGUF: NAMES`, the number format and quantization, or what is missing."""
    ggufs = sorted(path.stem for path in directory.rglob("*.gguf"))
    if ggufs:
        return f"GGUF: {', '.join(ggufs)}"
    try:
        config = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError):
        return "no config.json"
    kind = _kind(config) if isinstance(config, dict) else ""
    try:
        present_weight_files(directory)
    except WeightsMissing:
        return f"{kind}, incomplete"
    return kind


def _kind(config: dict[str, Any]) -> str:
    inner = config.get("text_config")
    text: dict[str, Any] = inner if isinstance(inner, dict) else config
    dtype = text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "unknown numbers"
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return f"safetensors, {method} over {dtype}" if method else f"safetensors, {dtype}"
