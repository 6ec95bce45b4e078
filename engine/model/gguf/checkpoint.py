"""Opens the weights of a GGUF model, whose directory `checkpoints.gguf.unpacking` has made."""

from pathlib import Path

from checkpoints.gguf.unpacking import PLACES
from engine.model.config_files import read_json
from engine.model.gguf.format import Blocks
from engine.model.gguf.tensors import read_tensors
from engine.model.weights import Checkpoint


def open_gguf(directory: Path) -> Checkpoint:
    """Opens the files that the directory names. Raises `ModelError` where one is broken, or is not there any more."""
    paths = [Path(place) for place in read_json(directory / PLACES)["files"]]
    return Checkpoint(directory, Blocks(), read_tensors(paths, read_json(directory / "config.json")))
