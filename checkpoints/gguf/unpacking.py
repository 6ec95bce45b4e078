"""Describes a GGUF model by a directory in Hugging Face's format, which is written once for each file.

Gateways, workers and the launcher then read it as any other model. The weights stay in the GGUF file: `gguf.json` names
its shards. The directory is in `$XDG_CACHE_HOME/baton/gguf` or `~/.cache/baton/gguf`, which `cache.py` keeps small.
"""

import hashlib
import json
import re
import shutil
import tempfile
import time
from pathlib import Path

from checkpoints.gguf import cache
from contracts.errors import ModelError

GGUF_INDEX = "gguf.json"
"""File of a described directory that lists the files of the weights."""
MAX_HOLD_ATTEMPTS = 10  # another process may remove a directory before this one holds it
SHARD_NAME_REGEX = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def unpacked(path: Path) -> Path:
    """Returns the directory that describes the model in a file, and writes it if the file is new or has changed.

    Raises `ModelError` for a file that is broken or not supported, or if the directory cannot be written.
    """
    paths = shards_of(path.absolute())  # not resolved: names in the hub's cache link to files without such names
    shard = SHARD_NAME_REGEX.fullmatch(paths[0].name)
    root = cache.root()
    target = root / _key(paths) / (shard[1] if shard else paths[0].stem)
    if (target / GGUF_INDEX).is_file() and cache.hold(target.parent):
        return target
    from checkpoints.gguf.description import description_of  # the gguf package takes half a second to load

    files = description_of(paths) | {GGUF_INDEX: json.dumps({"files": [str(each) for each in paths]})}
    try:
        for _ in range(MAX_HOLD_ATTEMPTS):
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if cache.hold(target.parent):  # no process removes it from here on
                _write(target, files)
                cache.trim(root)
                return target
            time.sleep(0.01)
    except OSError as error:
        raise ModelError(f"{path.name}: {root} cannot be written: {error.strerror}") from None
    raise ModelError(f"{path.name}: {target} is removed again and again by others")


def shards_of(path: Path) -> list[Path]:
    """Returns all files of the model that `path` is a part of, in order. Raises `ModelError` if one is missing."""
    match = SHARD_NAME_REGEX.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match[3])
    paths = [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [each.name for each in paths if not each.is_file()]
    if missing or not paths:
        raise ModelError(f"{path.parent} lacks {(missing or [path.name])[0]}, a part of the model")
    return paths


def _write(target: Path, files: dict[str, str]) -> None:
    """Creates the directory in one rename, so that readers never see a part of it; an existing one stays."""
    made = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        for name, text in files.items():
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_text(text, encoding="utf-8")
        try:
            made.rename(target)
        except OSError:
            if not (target / GGUF_INDEX).is_file():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _key(paths: list[Path]) -> str:
    """Returns a digest that changes with the files and with the code that reads them."""
    total = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        total.update(source.read_bytes())
    for path in paths:
        try:
            found = path.stat()
        except OSError as error:
            raise ModelError(f"{path.name} cannot be read: {error.strerror}") from None
        total.update(f"{path}\n{found.st_size}\n{found.st_mtime_ns}\n".encode())
    return total.hexdigest()[:32]
