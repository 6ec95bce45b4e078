"""A model directory that cannot be loaded says why in one sentence; equal weights have equal digests."""

import json
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.errors import ModelError
from engine.model.checkpoint.weights import Checkpoint
from engine.start.load import LoadedEngine, load_engine
from infra.config.engine import EngineConfig
from tests.reference import build_model
from tests.variants import VARIANTS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("whole") / "model", VARIANTS["qwen2"]())


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("sharded") / "model", VARIANTS["qwen2"](), shard_size="300KB")


def load(directory: Path) -> LoadedEngine:
    config = EngineConfig(model=str(directory), device="cpu", dtype="fp32", kv_memory=1 << 20, max_model_len=64)
    return load_engine(config, lambda stage, percent: None)


def edit(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[Path], None]:
    """Replaces a tensor of the single file, or drops it."""

    def apply(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        changed = change(tensors.pop(name))
        if changed is not None:
            tensors[name] = changed
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    return apply


def truncate(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def pickled(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def misplaced(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../model.safetensors"}}')


QUERY = "model.layers.2.self_attn.q_proj"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (edit(f"{QUERY}.weight", lambda tensor: None), [f"lack {QUERY}.weight"]),
        (edit(f"{QUERY}.bias", lambda tensor: None), [f"lack {QUERY}.bias"]),
        (edit(f"{QUERY}.weight", lambda tensor: tensor[:-1].clone()), [f"{QUERY}.weight", "[127, 128]", "[128, 128]"]),
        (edit("lm_head.weight", lambda tensor: tensor.to(torch.int8)), ["lm_head.weight", "I8", "BF16"]),
        (truncate, ["model.safetensors is broken or truncated"]),
        (lambda directory: (directory / "model.safetensors").write_bytes(b""), ["model.safetensors is broken"]),
        (lambda directory: (directory / "model.safetensors").unlink(), ["no model.safetensors"]),
        (pickled, ["pytorch_model.bin is a pickle"]),
        (lambda directory: (directory / "model.safetensors.index.json").write_text("[]"), ["not an index"]),
        (misplaced, ["outside of its directory"]),
    ],
)
def test_broken_weights_are_one_sentence(
    harm: Callable[[Path], None], words: list[str], whole: Path, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(whole, tmp_path / "model"))
    harm(directory)
    with pytest.raises(ModelError) as caught:
        load(directory)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_a_file_that_cannot_be_mapped_is_one_sentence(whole: Path, tmp_path: Path) -> None:
    """The process may map 1 GiB more than it has, and the file is larger: its bytes take no room on the disk."""
    directory = Path(shutil.copytree(whole, tmp_path / "model"))
    size = 64 << 30
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(file.tell() + size)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (1 << 30), before[1]))
    try:
        with pytest.raises(
            ModelError, match=r"^model\.safetensors has 64\.0GiB, and this machine has no memory to map"
        ):
            Checkpoint(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_weights_that_the_config_leaves_out_are_refused(whole: Path, tmp_path: Path) -> None:
    """A bias that would be ignored changes every token."""
    directory = Path(shutil.copytree(whole, tmp_path / "model"))
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.self_attn.o_proj.bias"] = torch.zeros(128)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no place for the weight model\.layers\.0\.self_attn\.o_proj\.bias"):
        load(directory)


def test_of_a_model_that_sees_images_the_language_model_is_all_that_is_loaded(tmp_path: Path) -> None:
    directory = build_model(tmp_path / "model", VARIANTS["gemma3-images"]())
    tensors = load_file(directory / "model.safetensors")
    assert any(name.startswith("vision_tower.") for name in tensors)
    load(directory)
    tensors["language_model.model.layers.0.self_attn.sinks"] = torch.zeros(4)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no place for the weight language_model\.model\.layers\.0\.self_attn\.sinks"):
        load(directory)


def test_layers_that_predict_further_tokens_are_left_out_and_no_others(tmp_path: Path) -> None:
    directory = build_model(tmp_path / "model", VARIANTS["deepseek-v3-dense"]())  # of four layers and one such
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.4.eh_proj.weight"] = torch.zeros(128, 256)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    load(directory)
    tensors["model.layers.40.mlp.down_proj.weight"] = torch.zeros(128, 192)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no place for the weight model\.layers\.40\.mlp\.down_proj\.weight"):
        load(directory)


@pytest.mark.parametrize(
    ("variant", "name", "words"),
    [
        ("deepseek-v2", "model.layers.1.self_attn.kv_b_proj.weight", ["[143, 32]", "[144, 32]"]),
        ("deepseek-v3", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", ["[39, 128]", "[40, 128]"]),
        ("phi3", "model.layers.1.self_attn.qkv_proj.weight", ["[255, 128]", "[256, 128]"]),
        ("glm4", "model.layers.1.mlp.gate_up_proj.weight", ["[383, 128]", "[384, 128]"]),
        ("olmo2", "model.layers.1.self_attn.k_norm.weight", ["[63]", "[64]"]),
        ("gemma2", "model.layers.1.post_feedforward_layernorm.weight", ["[127]", "[128]"]),
    ],
)
def test_tensors_of_other_shapes_are_named_in_every_family(
    variant: str, name: str, words: list[str], tmp_path: Path
) -> None:
    directory = build_model(tmp_path / "model", VARIANTS[variant]())
    edit(name, lambda tensor: tensor[:-1].clone())(directory)
    with pytest.raises(ModelError) as caught:
        load(directory)
    assert all(word in str(caught.value) for word in [name, *words]), caught.value


def test_a_missing_shard_is_named(sharded: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sharded, tmp_path / "model"))
    shards = sorted(directory.glob("*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    with pytest.raises(ModelError, match=f"lacks {shards[1].name}"):
        Checkpoint(directory)


def test_a_shard_without_what_the_index_promises_is_named(sharded: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sharded, tmp_path / "model"))
    index = directory / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.extra.weight"] = next(iter(content["weight_map"].values()))
    index.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"lacks model\.extra\.weight, which the index promises"):
        Checkpoint(directory)


def test_shards_do_not_change_the_digest_and_weights_do(whole: Path, sharded: Path, tmp_path: Path) -> None:
    digest = Checkpoint(whole).digest()
    assert Checkpoint(sharded).digest() == digest
    assert Checkpoint(whole).digest(b"another config") != digest
    directory = Path(shutil.copytree(whole, tmp_path / "model"))
    edit("model.layers.3.mlp.down_proj.weight", lambda tensor: tensor * 1.001)(directory)
    assert Checkpoint(directory).digest() != digest


def test_loading_reports_its_progress(whole: Path) -> None:
    seen: list[tuple[str, float]] = []
    config = EngineConfig(model=str(whole), device="cpu", dtype="fp32", kv_memory=1 << 20, max_model_len=64)
    load_engine(config, lambda stage, percent: seen.append((stage, percent)))
    assert [stage for stage, _ in seen if stage != "loading weights"] == [
        "reading the config",
        "hashing weights",
        "profiling",
        "making the KV pool",
        "measuring steps",
    ]
    percents = [percent for stage, percent in seen if stage == "loading weights"]
    assert percents == sorted(percents) and percents[0] == 0 and percents[-1] == 100
