"""Makes the model that all systems run, in the formats that they read, and keeps it beside the peers."""

import shutil
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

    The other files have the same weights: `gguf` for llama.cpp, and `compressed`, with quantized weights, for vLLM.
    """

    directory: Path
    dtype: str
    vocabulary: int
    longest: int
    quantization: Quantization = "none"
    gguf: Path | None = None
    compressed: Path | None = None

    def with_files(self, place: Path, peers: Sequence[Peer], stages: StageDisplay) -> "Model":
        """Makes the files that these peers read, where they are not in `place` already. Raises `PeerError`."""
        made, form = self, self.dtype if self.quantization == "none" else self.quantization
        for peer in peers:
            if peer.name == "llama.cpp":
                path = place / f"{self.directory.name}-{form}.gguf"
                made = replace(made, gguf=_converted(peer, "gguf_of", self.directory, path, form, stages))
            if peer.name == "vllm" and self.quantization != "none":
                path = place / f"{self.directory.name}-{form}-compressed"
                made = replace(made, compressed=_converted(peer, "compressed_of", self.directory, path, form, stages))
        return made

    def file_of(self, peer: str) -> Path:
        own = {"llama.cpp": self.gguf, "vllm": self.compressed}.get(peer)
        return own or self.directory


def random_model(directory: Path, shape: str, stages: StageDisplay) -> Path:
    """Returns a model of this shape, see `benchmarks.random_model`, made if it is not there. Raises `PeerError`."""
    path = directory / f"model-{shape}"
    if not (path / "tokenizer.json").is_file():  # the last file that is written
        _run("model", [sys.executable, "-m", "benchmarks.random_model", str(path), shape], directory, stages)
    return path


def _converted(peer: Peer, module: str, model: Path, path: Path, form: str, stages: StageDisplay) -> Path:
    if not path.exists() or path.stat().st_mtime < (model / "config.json").stat().st_mtime:
        partial = path.with_name(f"{path.name}.partial")
        for old in (path, partial):
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        command = [str(python_of(path.parent, peer)), "-m", f"benchmarks.peers.runners.{module}"]
        _run(module, [*command, str(model), str(partial), form], path.parent, stages)
        partial.rename(path)
    return path


def _run(name: str, command: list[str], directory: Path, stages: StageDisplay) -> None:
    stages.show(name, "making the model")
    log = directory / f"{name}.log"
    with child(command, log) as process:
        status = process.wait()
    if status:
        raise PeerError(f"{name}: making the model failed: {last_line(log)} (log: {log})")
