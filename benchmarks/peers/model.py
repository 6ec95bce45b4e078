"""Makes the model that everybody runs, in the formats that they read, and keeps it beside the peers."""

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.setup import PEERS, PeerError, python_of
from benchmarks.processes.children import child, last_line
from launcher.stages import Stages


@dataclass(frozen=True)
class Model:
    """Says what is run: `gguf` is the same model for llama.cpp, `longest` the tokens of the longest request."""

    directory: Path
    gguf: Path
    dtype: str
    vocabulary: int
    longest: int


def random_model(directory: Path, shape: str, stages: Stages) -> Path:
    """Returns a model of this shape, see `benchmarks.random_model`, made if it is not there. Raises `PeerError`."""
    path = directory / f"model-{shape}"
    if not (path / "tokenizer.json").is_file():  # the last file that is written
        _run("model", [sys.executable, "-m", "benchmarks.random_model", str(path), shape], directory, stages)
    return path


def converted(directory: Path, model: Path, dtype: str, stages: Stages) -> Path:
    """Converts the model for llama.cpp. Raises `PeerError`."""
    path = directory / f"{model.name}-{dtype}.gguf"
    if not path.is_file() or path.stat().st_mtime < (model / "config.json").stat().st_mtime:
        (llama,) = (peer for peer in PEERS if peer.name == "llama.cpp")
        partial = path.with_suffix(".partial")
        command = [str(python_of(directory, llama)), "-m", "benchmarks.peers.runners.gguf_of"]
        _run("gguf", [*command, str(model), str(partial), dtype], directory, stages)
        partial.rename(path)
    return path


def _run(name: str, command: list[str], directory: Path, stages: Stages) -> None:
    stages.show(name, "making the model")
    log = directory / f"{name}.log"
    with child(command, log) as process:
        status = process.wait()
    if status:
        raise PeerError(f"{name}: making the model failed: {last_line(log)} (log: {log})")
