"""An adapter that cannot be added is refused in one sentence that names the thing and the value."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.errors import AdapterError
from engine.adapters.slots import AdapterSlots
from tests.adapter_reference import build_adapter
from tests.engine.adapters.test_golden import adapted_engine
from tests.reference import build_model
from tests.variants import VARIANTS

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
UP = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("refusing") / "llama", VARIANTS["llama"]())


@pytest.fixture(scope="module")
def slots(model: Path) -> AdapterSlots:
    slots = adapted_engine(model, max_loras=1, max_lora_rank=8).adapters
    assert slots is not None
    return slots


@pytest.fixture
def adapter(model: Path, tmp_path: Path) -> Path:
    return build_adapter(tmp_path / "adapter", model, r=4)


def with_config(directory: Path, **changes: Any) -> None:
    path = directory / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora asks for DoRA"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save asks for modules that are saved whole"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"r": 0}, "r is 0, and not a number above 0"),
        ({"r": True}, "r is True"),
        ({"lora_alpha": "x"}, "lora_alpha is 'x'"),
        ({"rank_pattern": {"q_proj": 9}}, "its rank 9 is above --max-lora-rank 8"),
        ({"rank_pattern": {"(a+)+": 4}}, "which is too elaborate"),
        ({"alpha_pattern": {"[": 4}}, "which is no regular expression"),
        ({"rank_pattern": {"q_proj": 2}}, r"q_proj.lora_A.weight has shape \[4, 128\].* ask for \[2, 128\]"),
        ({"target_modules": ["q_proj", "c_attn"]}, "its target module 'c_attn' is not among the modules"),
        ({"target_modules": ["embed_tokens"]}, "its target module 'embed_tokens' is not among the modules"),
        ({"target_modules": 5}, "target_modules is neither"),
    ],
    ids=str,
)
def test_a_config_that_asks_for_more_or_for_nonsense(
    changes: dict[str, Any], why: str, adapter: Path, slots: AdapterSlots
) -> None:
    with_config(adapter, **changes)
    with pytest.raises(AdapterError, match=why):
        slots.load(adapter)


def missing(tensors: Tensors) -> None:
    del tensors[UP]


def all_missing(tensors: Tensors) -> None:
    for name in list(tensors):
        if "layers.1.mlp.up_proj" in name:
            del tensors[name]


def misshapen(tensors: Tensors) -> None:
    tensors[UP] = torch.zeros(4, 64)


def whole(tensors: Tensors) -> None:
    tensors["base_model.model.lm_head.weight"] = torch.zeros(2, 2)


def embedding(tensors: Tensors) -> None:
    tensors["base_model.model.model.embed_tokens.lora_A.weight"] = torch.zeros(4, 128)


def images_only(tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[name.replace("model.layers", "model.vision_tower.layers")] = tensors.pop(name)


def integers(tensors: Tensors) -> None:
    tensors[UP] = tensors[UP].to(torch.int8)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (missing, f"it lacks the tensor {UP}"),
        (all_missing, f"it lacks the tensor {UP}"),
        (misshapen, rf"{UP} has shape \[4, 64\], but this model and its config ask for \[4, 128\]"),
        (whole, "it has the tensor lm_head.weight, and only lora_A and lora_B"),
        (embedding, "it changes model.embed_tokens, which this model lacks or cannot have changed; it can: down_proj"),
        (images_only, "has no tensors of the language model"),
        (integers, "is stored as torch.int8"),
    ],
)
def test_tensors_that_do_not_fit(
    change: Callable[[Tensors], None], why: str, adapter: Path, slots: AdapterSlots
) -> None:
    tensors = load_file(adapter / WEIGHTS)
    change(tensors)
    save_file(tensors, adapter / WEIGHTS)
    with pytest.raises(AdapterError, match=why):
        slots.load(adapter)


def test_files_that_are_missing_broken_or_pickles(adapter: Path, slots: AdapterSlots) -> None:
    with pytest.raises(AdapterError, match="there is no directory 'nowhere'"):
        slots.load(adapter / "nowhere")
    (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")
    with pytest.raises(AdapterError, match=r"has no adapter_model.safetensors; adapter_model.bin is a pickle"):
        slots.load(adapter)
    (adapter / WEIGHTS).write_bytes(b"\x08" * 100)
    with pytest.raises(AdapterError, match=r"adapter_model.safetensors cannot be read"):
        slots.load(adapter)
    for body, why in ((b"[]", "is not a JSON object"), (b"{", "is not JSON"), (b"\xff", "is not JSON")):
        (adapter / CONFIG).write_bytes(body)
        with pytest.raises(AdapterError, match=f"adapter_config.json {why}"):
            slots.load(adapter)
    (adapter / CONFIG).unlink()
    with pytest.raises(AdapterError, match=r"has no adapter_config.json"):
        slots.load(adapter)


def test_their_number_is_bound_and_a_slot_comes_back(model: Path, tmp_path: Path) -> None:
    slots = adapted_engine(model, max_loras=2, max_lora_rank=8).adapters
    assert slots is not None
    first, second, third = (build_adapter(tmp_path / f"{seed}", model, seed=seed) for seed in (1, 2, 3))
    digests = [slots.load(first), slots.load(second)]
    assert digests[0] != digests[1] and slots.load(first) == digests[0]
    with pytest.raises(AdapterError, match=r"2 adapters are loaded already \(--max-loras\)"):
        slots.load(third)
    slots.free(digests[0])
    assert len({*digests, slots.load(third)}) == 3


def test_the_digest_is_of_the_content(model: Path, tmp_path: Path, slots: AdapterSlots) -> None:
    one, same, scaled = (build_adapter(tmp_path / name, model, r=4) for name in ("one", "same", "scaled"))
    with_config(scaled, lora_alpha=17)
    digest = slots.load(one)
    assert slots.load(same) == digest
    slots.free(digest)
    other = slots.load(scaled)
    assert other != digest
    slots.free(other)
