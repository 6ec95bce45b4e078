"""A GGUF file that is broken or not supported is refused in one sentence that names the file and what is wrong."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from checkpoints.gguf.unpacking import unpacked
from contracts.errors import ModelError
from tests.checkpoints.gguf.vocabularies import CONFIG
from tests.gguf_files import add_config, add_words

TQ1_0 = gguf.GGMLQuantizationType.TQ1_0


def file_of(
    target: Path, architecture: str = "llama", lacking: str = "", kind: Any = None, change: Callable[[Any], Any] = id
) -> bytes:
    """Writes a small file, without one key of the metadata, whose head is of a type; returns its bytes."""
    writer = gguf.GGUFWriter(target, architecture)
    add_config(writer, CONFIG)
    add_words(writer, 32)
    change(writer)
    for shard in writer.kv_data:
        shard.pop(lacking, None)
    writer.add_tensor("token_embd.weight", np.zeros((32, 64), np.float32))
    head = np.zeros((32, 64), np.float32) if kind is None else np.zeros((32, 54), np.uint8)
    writer.add_tensor("output.weight", head, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target.read_bytes()


def versioned(whole: bytes, version: int) -> bytes:
    return whole[:4] + struct.pack("<I", version) + whole[8:]


CASES: dict[str, tuple[dict[str, Any], Callable[[bytes], bytes], str]] = {
    "cut off in a tensor": ({}, lambda whole: whole[:-100], r" was cut off: at least 100 bytes are missing"),
    "cut off in the header": ({}, lambda whole: whole[:300], r" was cut off: at least \d+ bytes are missing"),
    "cut off behind the magic": ({}, lambda whole: whole[:4], r" was cut off: at least 4 bytes are missing"),
    "nothing": ({}, lambda whole: b"", r" is not a GGUF file: it does not begin with GGUF"),
    "a zip": ({}, lambda whole: b"PK\x03\x04" + whole, r" is not a GGUF file: it does not begin with GGUF"),
    "version 1": ({}, lambda whole: versioned(whole, 1), r" is GGUF of version 1; versions 2 and 3 are served"),
    "version 4": ({}, lambda whole: versioned(whole, 4), r" is GGUF of version 4; versions 2 and 3 are served"),
    "type": ({"kind": TQ1_0}, bytes, r": output\.weight is stored as type TQ1_0; supported: F32, F16, BF16, [^\n]+"),
    "architecture": (
        {"architecture": "bert"},
        bytes,
        r": GGUF of the architecture bert is not supported; supported: llama, qwen2, [^\n]+",
    ),
    "no layers": ({"lacking": "llama.block_count"}, bytes, r": the metadata lack llama\.block_count"),
    "no architecture": ({"lacking": "general.architecture"}, bytes, r": the metadata lack general\.architecture"),
    "no tokenizer": ({"lacking": "tokenizer.ggml.model"}, bytes, r": the metadata lack tokenizer\.ggml\.model"),
    "no words": ({"lacking": "tokenizer.ggml.tokens"}, bytes, r": the metadata lack tokenizer\.ggml\.tokens"),
    "no scores": ({"lacking": "tokenizer.ggml.scores"}, bytes, r": the metadata lack tokenizer\.ggml\.scores"),
    "end token": (
        {"change": lambda writer: writer.add_eos_token_id(32)},
        bytes,
        r": tokenizer\.ggml\.eos_token_id is 32, but there are 32 tokens",
    ),
    "no merges": (
        {"change": lambda writer: writer.kv_data[0].update(gpt2_keys())},
        bytes,
        r": the metadata lack tokenizer\.ggml\.merges",
    ),
    "a part": (
        {"change": lambda writer: writer.add_uint16("split.count", 3)},
        bytes,
        r" is one of 3 parts of a model, whose names end in -00001-of-00003\.gguf",
    ),
}


def gpt2_keys() -> dict[str, Any]:
    text = gguf.GGUFValueType.STRING
    values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"}
    return {key: gguf.gguf_writer.GGUFValue(value, text) for key, value in values.items()}


@pytest.mark.parametrize("case", CASES)
def test_what_is_broken_or_not_supported_is_one_sentence(case: str, tmp_path: Path) -> None:
    options, broken, sentence = CASES[case]
    file = tmp_path / "model.gguf"
    whole = file_of(file, **options)
    file.write_bytes(broken(whole))
    with pytest.raises(ModelError, match=rf"^model\.gguf{sentence}$"):
        unpacked(file)


def test_the_whole_file_is_served(tmp_path: Path) -> None:
    """Only what a case breaks is wrong with its file."""
    file_of(tmp_path / "model.gguf")
    assert (unpacked(tmp_path / "model.gguf") / "gguf.json").is_file()


def test_every_cut_is_told(tmp_path: Path) -> None:
    """Nothing but the sentence is raised, wherever a download ended."""
    file = tmp_path / "model.gguf"
    whole = file_of(file)
    for length in range(0, len(whole) - 1, 97):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"^model\.gguf (was cut off|is not a GGUF file)"):
            unpacked(file)


@pytest.mark.parametrize("written", [2**60, 2**63 + 5])
@pytest.mark.parametrize("at", ["tensors", "pairs", "array", "string", "dimension", "offset"])
def test_a_length_beyond_the_file_is_an_error_and_no_loop(at: str, written: int, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    whole = bytearray(file_of(file))
    array = whole.index(b"tokenizer.ggml.scores") + len(b"tokenizer.ggml.scores") + 8
    tensor = whole.index(b"output.weight") + len(b"output.weight")
    places = {"tensors": 8, "pairs": 16, "array": array, "string": 24, "dimension": tensor + 4, "offset": tensor + 24}
    whole[places[at] : places[at] + 8] = struct.pack("<Q", written)
    file.write_bytes(whole)
    with pytest.raises(ModelError, match=r"^model\.gguf (was cut off|is a broken GGUF file): "):
        unpacked(file)


def test_an_array_of_arrays_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    whole = bytearray(file_of(file))
    array = whole.index(b"tokenizer.ggml.scores") + len(b"tokenizer.ggml.scores") + 4
    whole[array : array + 4] = struct.pack("<I", 9)
    file.write_bytes(whole)
    with pytest.raises(ModelError, match=r"^model\.gguf is a broken GGUF file: an array of arrays at byte \d+$"):
        unpacked(file)
