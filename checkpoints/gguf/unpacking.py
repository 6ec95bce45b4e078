"""Writes what a GGUF file says of its model as the files of a directory in Hugging Face's format, once per file.

So gateways, workers and the launcher read such a model as any other. The weights stay where they are: `gguf.json`
names their files. The directory is below `$XDG_CACHE_HOME/baton/gguf`, or `~/.cache/baton/gguf`, which is kept within
bounds (`cache.py`).
"""

import hashlib
import json
import re
import shutil
import tempfile
import time
from pathlib import Path

from checkpoints.gguf import cache
from checkpoints.gguf.config import Metadata, config_of
from checkpoints.gguf.header import Header, read_header
from checkpoints.gguf.tokenizer import generation_config_of, templates_of, tokenizer_config_of, tokenizer_of
from contracts.errors import ModelError

PLACES = "gguf.json"
"""Names the files of the weights."""
TRIES = 10
"""How often a directory is made that somebody else may remove before it is held."""
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def unpacked(path: Path) -> Path:
    """Returns the directory that describes the model in a file; it is made if there is none of the file as it is.

    Raises `ModelError` for a file that is broken or not supported, and where the directory cannot be made.
    """
    paths = shards_of(path.absolute())  # not resolved: in the hub's cache names are links to what has none
    whole = SHARD.fullmatch(paths[0].name)
    place = cache.root()
    target = place / _key(paths) / (whole[1] if whole else paths[0].stem)
    if (target / PLACES).is_file() and cache.hold(target.parent):
        return target
    files = _files(paths) | {PLACES: json.dumps({"files": [str(each) for each in paths]})}
    try:
        for _ in range(TRIES):
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if cache.hold(target.parent):  # from here on nobody removes it
                _write(target, files)
                cache.trim(place)
                return target
            time.sleep(0.01)
    except OSError as error:
        raise ModelError(f"{path.name}: {place} cannot be written: {error.strerror}") from None
    raise ModelError(f"{path.name}: {target} is removed again and again by others")


def shards_of(path: Path) -> list[Path]:
    """Returns all files of the model that a file is of, the first first. Raises `ModelError` where one is missing."""
    match = SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match[3])
    paths = [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [each.name for each in paths if not each.is_file()]
    if missing or not paths:
        raise ModelError(f"{path.parent} lacks {(missing or [path.name])[0]}, a part of the model")
    return paths


def _files(paths: list[Path]) -> dict[str, str]:
    headers = {path: read_header(path) for path in paths}
    places = {tensor: path for path, header in headers.items() for tensor in header.tensors}
    name, tensors = (
        paths[0].name,
        {key: tensor for header in headers.values() for key, tensor in header.tensors.items()},
    )
    header = Header(headers[paths[0]].metadata, tensors)
    parts = header.metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > len(paths):
        raise ModelError(f"{name} is one of {parts} parts of a model, whose names end in -00001-of-{parts:05}.gguf")

    def read(tensor: str) -> bytes:
        with places[tensor].open("rb") as file:
            file.seek(tensors[tensor].begin)
            return file.read(tensors[tensor].size)

    given, config = Metadata(header, name), config_of(header, read, name)
    files = {
        "config.json": json.dumps(config),
        "generation_config.json": json.dumps(generation_config_of(given)),
        "tokenizer.json": json.dumps(tokenizer_of(given), ensure_ascii=False),
        "tokenizer_config.json": json.dumps(tokenizer_config_of(given), ensure_ascii=False),
    }
    for name, source in templates_of(given).items():
        place = "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"
        files[place] = source
    return files


def _write(target: Path, files: dict[str, str]) -> None:
    """Makes a directory at once: nobody sees a part of it, and who comes second finds the first one's."""
    made = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        for name, text in files.items():
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_text(text, encoding="utf-8")
        try:
            made.rename(target)
        except OSError:
            if not (target / PLACES).is_file():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _key(paths: list[Path]) -> str:
    """Returns what changes with the files and with the code that reads them."""
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
