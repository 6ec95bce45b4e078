"""Reads the tensors in the headers of safetensors files, and a model's size in memory, without torch.

The format is an 8-byte little-endian length, a JSON header, then the tensors' bytes
(https://huggingface.co/docs/safetensors).
"""

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints.weight_files import WeightsMissing, weight_files

HEADER_LENGTH = struct.Struct("<Q")
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
FLOAT_DTYPES = ("F32", "BF16", "F16")
NON_TEXT_TENSOR_REGEX = re.compile(
    r"(^|\.)(vision|visual|image|audio|speech|multi_modal|mm_|mtp|embed_vision|embed_audio)"
)
"""Tensors outside of the language model, which a worker may leave unread."""
LAYER_REGEX = re.compile(r"(?:^|\.)layers\.(\d+)\.")
TOKEN_TABLE_REGEX = re.compile(r"(embed\w*|wte|word_embeddings|lm_head)\.weight$")
"""Tensors with a row for each token of the vocabulary: embeddings and output layers, which may be tied."""


@dataclass(frozen=True)
class SafetensorsEntry:
    kind: str  # such as BF16
    shape: tuple[int, ...]
    end: int  # byte offset after the header

    @property
    def values(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> tuple[dict[str, SafetensorsEntry], int]:
    """Returns a file's tensors by name, and the offset of their bytes.

    Raises `OSError` if the file cannot be read, `EOFError` if it is too short, `ValueError` for an invalid header.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        (length,) = HEADER_LENGTH.unpack(file.read(HEADER_LENGTH.size).ljust(HEADER_LENGTH.size, b"\0"))
        if not 0 < length <= min(MAX_HEADER_BYTES, size - HEADER_LENGTH.size):
            raise EOFError
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            tensors = {
                name: SafetensorsEntry(str(entry["dtype"]), tuple(entry["shape"]), int(entry["data_offsets"][1]))
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError("no header of tensors") from error
    return tensors, HEADER_LENGTH.size + length


def least_bytes(directory: Path, dtype: str, quantization: str) -> int:
    """Returns a lower bound for the bytes of a worker's weights, given the values of `--dtype` and `--quantization`.

    Packed weights keep their size. Tensors that a worker may leave unread do not count: parts for images and sound, and
    layers after the last. Of tables with a row for each token only the largest counts: an output layer may be tied to
    the embedding, and an embedding may be read from the file's pages, which workers share. 0 for broken files, which
    other checks report.
    """
    return least_of(tensor_bytes(directory, dtype, quantization))


def tensor_bytes(directory: Path, dtype: str, quantization: str) -> dict[str, float]:
    """Returns the bytes in memory of each tensor that a worker reads; empty for broken files."""
    layers = text_config(directory).get("num_hidden_layers")
    try:
        headers = [read_header(directory / name)[0] for name in weight_files(directory)]
    except (OSError, EOFError, ValueError, WeightsMissing):
        return {}
    return _sizes_read(headers, layers, float_bytes(dtype, quantization))


def least_of(sizes: Mapping[str, float]) -> int:
    """Returns the bytes of all tensors; of the tables with a row for each token, only the largest counts."""
    tables = [size for name, size in sizes.items() if TOKEN_TABLE_REGEX.search(name)]
    return int(sum(sizes.values()) - sum(tables) + max(tables, default=0))


def float_bytes(dtype: str, quantization: str) -> float:
    """Returns the minimum bytes of a weight for these values of `--dtype` and `--quantization`."""
    if quantization != "none":
        return 0.5 if quantization == "int4" else 1.0
    return 4.0 if dtype == "fp32" else 2.0


def text_config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    text = config.get("text_config", config) if isinstance(config, dict) else {}
    return text if isinstance(text, dict) else {}


def _sizes_read(headers: list[dict[str, SafetensorsEntry]], layers: Any, bytes_of_float: float) -> dict[str, float]:
    """Returns the bytes in memory of each tensor that a worker reads; `layers` is the model's number of layers."""
    sizes: dict[str, float] = {}
    for header in headers:
        begin = 0
        for name, tensor in sorted(header.items(), key=lambda item: item[1].end):
            size, begin = tensor.end - begin, tensor.end
            layer = LAYER_REGEX.search(name)
            behind = layer is not None and isinstance(layers, int) and int(layer[1]) >= layers
            if not behind and not NON_TEXT_TENSOR_REGEX.search(name):
                sizes[name] = tensor.values * bytes_of_float if tensor.kind in FLOAT_DTYPES else size
    return sizes
