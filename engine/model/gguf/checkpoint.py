"""Opens the weights of a GGUF model, by the directory that `checkpoints.gguf.unpacking` wrote."""

from pathlib import Path

from checkpoints.gguf.unpacking import GGUF_INDEX
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config_files import read_json
from engine.model.gguf.format import GGUFBlocks
from engine.model.gguf.tensors import read_tensors


def open_gguf(directory: Path) -> Checkpoint:
    """Opens the GGUF files that the directory lists. Raises `ModelError` if one is broken or gone."""
    paths = [Path(place) for place in read_json(directory / GGUF_INDEX)["files"]]
    return Checkpoint(directory, GGUFBlocks(), read_tensors(paths, read_json(directory / "config.json")))
