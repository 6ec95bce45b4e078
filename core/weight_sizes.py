"""Reads from the headers of safetensors files which tensors they hold, and what a model takes in memory; no torch.

The format is an 8-byte little-endian length, a JSON header, then the tensors' bytes
(https://huggingface.co/docs/safetensors).
"""

import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.weight_files import WeightsMissing, weight_files

LENGTH = struct.Struct("<Q")
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
FLOATS = ("F32", "BF16", "F16")
BESIDE_THE_TEXT = re.compile(r"(^|\.)(vision|visual|image|audio|speech|multi_modal|mm_|mtp|embed_vision|embed_audio)")
"""Names of tensors that a checkpoint may have beside its language model, which a worker may leave unread."""
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True)
class StoredTensor:
    """Describes a tensor as its file has it."""

    kind: str  # such as BF16
    shape: tuple[int, ...]
    end: int  # bytes behind the header

    @property
    def values(self) -> int:
        """Returns how many numbers the tensor has."""
        return math.prod(self.shape)


def read_header(path: Path) -> tuple[dict[str, StoredTensor], int]:
    """Returns a file's tensors by name, and where their bytes begin.

    Raises `OSError` where the file cannot be read, `EOFError` where it is too short for its header, `ValueError` for a
    header that describes no tensors.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        (length,) = LENGTH.unpack(file.read(LENGTH.size).ljust(LENGTH.size, b"\0"))
        if not 0 < length <= min(MAX_HEADER_BYTES, size - LENGTH.size):
            raise EOFError
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            tensors = {
                name: StoredTensor(str(entry["dtype"]), tuple(entry["shape"]), int(entry["data_offsets"][1]))
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError("no header of tensors") from error
    return tensors, LENGTH.size + length


def least_bytes(directory: Path, dtype: str, quantization: str) -> int:
    """Returns the bytes that a worker's copy of a model's weights takes at the least; options as of `EngineOptions`.

    Numbers that are packed already stay as they are. What a worker may leave unread does not count: parts for pictures
    and sound, layers behind the model's last, an output layer that the config ties to the embedding. 0 where files are
    broken, which other checks tell.
    """
    config = _text_config(directory)
    try:
        headers = [read_header(directory / name)[0] for name in weight_files(directory)]
    except (OSError, EOFError, ValueError, WeightsMissing):
        return 0
    each = float_bytes(dtype, quantization)
    return int(sum(_bytes_read(header, config, each) for header in headers))


def float_bytes(dtype: str, quantization: str) -> float:
    """Returns what a weight takes at the least where `--dtype` and `--quantization` have these values."""
    if quantization != "none":
        return 0.5 if quantization == "int4" else 1.0
    return 4.0 if dtype == "fp32" else 2.0


def _text_config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    text = config.get("text_config", config) if isinstance(config, dict) else {}
    return text if isinstance(text, dict) else {}


def _bytes_read(header: dict[str, StoredTensor], config: dict[str, Any], bytes_of_float: float) -> float:
    layers, tied = config.get("num_hidden_layers"), config.get("tie_word_embeddings")
    total, begin = 0.0, 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1].end):
        size, begin = tensor.end - begin, tensor.end
        layer = LAYER.search(name)
        behind = layer is not None and isinstance(layers, int) and int(layer[1]) >= layers
        if behind or BESIDE_THE_TEXT.search(name) or (tied and name.endswith("lm_head.weight")):
            continue
        total += tensor.values * bytes_of_float if tensor.kind in FLOATS else size
    return total
