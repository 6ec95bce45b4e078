"""Makes the model that all systems run, in the formats that they read, and keeps it beside the peers."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peers.setup import Peer, PeerError, python_of
from benchmarks.processes.children import child, last_line
from contracts.kinds import Quantization
from launcher.stages import StageDisplay


@dataclass(frozen=True)
class Model:
    """A checkpoint in `directory`; `longest` is the number of tokens of the longest request.

    `gguf` has the same weights for llama.cpp.
    """

    directory: Path
    dtype: str
    vocabulary: int
    longest: int
    quantization: Quantization = "none"
    gguf: Path | None = None

    def with_files(self, place: Path, peers: Sequence[Peer], stages: StageDisplay) -> "Model":
        """Makes the file that llama.cpp reads, if it is a peer and has none in `place`. Raises `PeerError`."""
        form = self.dtype if self.quantization == "none" else self.quantization
        path = place / f"{self.directory.name}-{form}.gguf"
        for peer in peers:
            if peer.name == "llama.cpp":
                _convert(peer, self.directory, path, form, stages)
                return replace(self, gguf=path)
        return self

    def file_of(self, peer: str) -> Path:
        return self.gguf if peer == "llama.cpp" and self.gguf else self.directory


def random_model(directory: Path, shape: str, stages: StageDisplay) -> Path:
    """Returns a model of a shape of `benchmarks.models.random_model`, made if it is not there. Raises `PeerError`."""
    path = directory / f"model-{shape}"
    if not (path / "tokenizer.json").is_file():  # the last file that is written
        _run("model", [sys.executable, "-m", "benchmarks.models.random_model", str(path), shape], directory, stages)
    return path


def _convert(peer: Peer, model: Path, path: Path, form: str, stages: StageDisplay) -> None:
    if not path.exists() or path.stat().st_mtime < (model / "config.json").stat().st_mtime:
        unfinished = path.with_name(f"{path.name}.partial")
        unfinished.unlink(missing_ok=True)
        command = [str(python_of(path.parent, peer)), "-m", "benchmarks.peers.runners.gguf_of"]
        _run("gguf_of", [*command, str(model), str(unfinished), form], path.parent, stages)
        unfinished.rename(path)


def _run(name: str, command: list[str], directory: Path, stages: StageDisplay) -> None:
    stages.show(name, "making the model")
    log = directory / f"{name}.log"
    with child(command, log) as process:
        status = process.wait()
    if status:
        raise PeerError(f"{name}: making the model failed: {last_line(log)} (log: {log})")
