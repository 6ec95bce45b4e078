"""Makes random EAGLE heads as they are published, and computes what they guess by transformers' own decoder layer."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from tests.reference import build_model, load_reference
from tests.variants import SIZES


class Guesser(Protocol):
    """Guesses states over a whole text at once."""

    def __call__(self, embedded: Tensor, before: Tensor) -> Tensor: ...

    def ready(self, guessed: Tensor) -> Tensor: ...


class ReferenceHead(nn.Module):
    """Guesses states over a whole text at once, in fp32."""

    def __init__(self, config: LlamaConfig, bias: bool) -> None:
        super().__init__()
        config._attn_implementation = "eager"
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers = nn.ModuleList([LlamaDecoderLayer(config, 0)])
        self.layers[0].input_layernorm = nn.Identity()
        self.rotary = LlamaRotaryEmbedding(config)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.15)

    def forward(self, embedded: Tensor, before: Tensor) -> Tensor:
        """Returns g `[tokens, hidden]` of embeddings and the states before them, the first of which is unknown."""
        x = self.fc(torch.cat((embedded, before), -1))[None]
        x[:, 0] = 0.0
        count = x.shape[1]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        angles = self.rotary(x, torch.arange(count)[None])
        found: Tensor = self.layers[0](x, attention_mask=mask, position_embeddings=angles)[0]
        return found

    def ready(self, guessed: Tensor) -> Tensor:
        """Returns what the model's head makes logits of: the guess itself."""
        return guessed


def build_head(directory: Path, config: Any, *, bias: bool = False, seed: int = 1, kv_heads: int = 0) -> ReferenceHead:
    """Saves a random head for models of `config`, with a copy of an embedding that nobody is to read.

    `kv_heads` are its own; 0: as many as the model's.
    """
    torch.manual_seed(seed)
    sizes = {name: getattr(config, name) for name in SIZES}
    config = LlamaConfig(**sizes | {"num_key_value_heads": kv_heads or config.num_key_value_heads})
    head = ReferenceHead(LlamaConfig(**config.to_dict() | {"num_hidden_layers": 1}), bias)
    directory.mkdir(parents=True)
    tensors = {name: tensor.contiguous() for name, tensor in head.state_dict().items() if "rotary" not in name}
    tensors["embed_tokens.weight"] = torch.zeros(config.vocab_size, config.hidden_size)
    save_file(tensors, directory / "model.safetensors")
    described = config.to_dict() | {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
    (directory / "config.json").write_text(json.dumps(described))
    return head.eval()


def edited(directory: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Changes the tensors of a saved head."""
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


@torch.inference_mode()
def guesses(model: Path, head: Guesser, text: Sequence[int], count: int) -> list[int]:
    """Returns the head's greedy guesses behind a text, of whose last token the model has computed no state."""
    target: Any = load_reference(model)
    tokens = list(text)
    states = target.model(torch.tensor([tokens[:-1]])).last_hidden_state[0]  # f(0) … f(n - 2)
    for _ in range(count):
        embedded = target.model.embed_tokens(torch.tensor(tokens))
        guessed = head(embedded, torch.cat((torch.zeros_like(states[:1]), states)))[-1:]
        tokens.append(int(target.lm_head(head.ready(guessed)).argmax()))
        states = torch.cat((states, guessed))
    return tokens[len(text) :]


class ReferenceNextLayer(nn.Module):
    """Guesses states by the decoder layer behind a DeepSeek-like model's last one, in fp32."""

    def __init__(self, layer: nn.Module, rotary: nn.Module, tensors: dict[str, Tensor], eps: float) -> None:
        super().__init__()
        self.layer, self.rotary, self.tensors, self.eps = layer, rotary, tensors, eps

    def normed(self, x: Tensor, name: str) -> Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.eps)

    def forward(self, embedded: Tensor, before: Tensor) -> Tensor:
        """Returns g `[tokens, hidden]`, as `ReferenceHead` does."""
        both = torch.cat((self.normed(embedded, "enorm"), self.normed(before, "hnorm")), -1)
        x = (both @ self.tensors["eh_proj.weight"].t())[None]
        x[:, 0] = 0.0
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)[None, None]
        angles = self.rotary(x, torch.arange(x.shape[1])[None])
        found: Tensor = self.layer(x, attention_mask=mask, position_embeddings=angles)[0]
        return found

    def ready(self, guessed: Tensor) -> Tensor:
        """Returns what the model's head makes logits of."""
        return self.normed(guessed, "shared_head.norm")


def build_next_layer(directory: Path, config: Any) -> ReferenceNextLayer:
    """Saves a random model of `config`, whose checkpoint also has a layer that predicts further tokens."""
    own, config = config, config.__class__(**config.to_dict() | {"num_hidden_layers": config.num_hidden_layers + 1})
    build_model(directory, config)
    model = load_reference(directory)
    hidden, prefix = config.hidden_size, f"model.layers.{own.num_hidden_layers}."
    torch.manual_seed(3)
    tensors = {f"{name}.weight": 1 + 0.2 * torch.randn(hidden) for name in ("enorm", "hnorm", "shared_head.norm")}
    tensors["eh_proj.weight"] = 0.1 * torch.randn(hidden, 2 * hidden)
    copies = {"embed_tokens.weight": model.model.embed_tokens.weight, "shared_head.head.weight": model.lm_head.weight}
    stored = load_file(directory / "model.safetensors")
    stored |= {prefix + name: tensor.detach().clone() for name, tensor in (tensors | copies).items()}
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    own.architectures = config.architectures
    (directory / "config.json").write_text(json.dumps(own.to_dict() | {"architectures": ["DeepseekV3ForCausalLM"]}))
    layer = model.model.layers[-1]
    return ReferenceNextLayer(layer, model.model.rotary_emb, tensors, config.rms_norm_eps)
