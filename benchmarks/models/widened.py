"""Makes a larger Llama that computes the same function as a small one: every matrix is read and multiplied.

Drafts for a model with random weights would never be accepted, and trained models of every size would be downloads. So
a small trained model is widened and deepened, after Net2Net (Chen, Goodfellow and Shlens, arXiv:1511.05641): units are
repeated, and their readers divided by the number of copies; layers in between add nothing. Factors are powers of two,
so that divided numbers stay exact in every format.
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


class Larger(NamedTuple):
    """Says how often units are repeated, each a power of two, and how many layers there are."""

    hidden: int
    intermediate: int
    heads: int
    layers: int


SIZES = {"6.7M": Larger(2, 2, 2, 4), "18M": Larger(2, 2, 2, 12), "118M": Larger(4, 4, 4, 20)}
"""Numbers of parameters of the demo model, made larger."""


def widen(small: Path, directory: Path, larger: Larger) -> None:
    assert all(times & (times - 1) == 0 for times in larger[:3]), "not powers of two"
    config = json.loads((small / "config.json").read_text(encoding="utf-8"))
    assert config["tie_word_embeddings"] and not config["attention_bias"] and not config["mlp_bias"]
    before, layers = config["num_hidden_layers"], larger.layers
    weights = load_file(small / "model.safetensors")
    found = {"model.embed_tokens.weight": weights["model.embed_tokens.weight"].repeat(1, larger.hidden)}
    # The head multiplies by the embedding, and so sums each number as often as it is repeated.
    found["model.norm.weight"] = weights["model.norm.weight"].repeat(larger.hidden) / larger.hidden
    places = [place * layers // before for place in range(before)]  # of the layers that compute
    for place in range(layers):
        source = max(number for number, first in enumerate(places) if first <= place)
        for name, tensor in _layer(weights, source, larger).items():
            idle = place not in places and name.endswith(("o_proj.weight", "down_proj.weight"))
            found[f"model.layers.{place}.{name}"] = torch.zeros_like(tensor) if idle else tensor
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, directory / "model.safetensors")
    config |= {
        "hidden_size": config["hidden_size"] * larger.hidden,
        "intermediate_size": config["intermediate_size"] * larger.intermediate,
        "num_attention_heads": config["num_attention_heads"] * larger.heads,
        "num_key_value_heads": config["num_key_value_heads"] * larger.heads,
        "num_hidden_layers": layers,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    for path in small.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copyfile(path, directory / path.name)


def _layer(weights: dict[str, Tensor], number: int, larger: Larger) -> dict[str, Tensor]:
    hidden, units, heads, _ = larger
    prefix = f"model.layers.{number}."
    own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    found = {}
    for name, tensor in own.items():
        if name.endswith("norm.weight"):
            found[name] = tensor.repeat(hidden)
        elif name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            found[name] = tensor.repeat(heads, hidden) / hidden
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            found[name] = tensor.repeat(units, hidden) / hidden
        else:
            times = heads if name.endswith("o_proj.weight") else units
            found[name] = tensor.repeat(hidden, times) / times
    return found
