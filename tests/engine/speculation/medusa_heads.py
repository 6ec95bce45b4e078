"""Makes random Medusa heads as they are published, and computes what they guess by PyTorch's own modules."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.reference import load_reference

Naming = Literal["first", "vllm"]


class ReferenceHeads(nn.Module):
    """Computes all heads in fp32, one after the other."""

    def __init__(self, heads: int, blocks: int, hidden: int, vocab: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(blocks)) for _ in range(heads)
        )
        self.outputs = nn.ModuleList(nn.Linear(hidden, vocab, bias=False) for _ in range(heads))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.15)

    @torch.no_grad()
    def forward(self, hidden: Tensor) -> list[Tensor]:
        """Returns of each head the logits `[vocab]` of one state `[hidden]`."""
        found = []
        for blocks, output in zip(self.blocks, self.outputs, strict=True):
            state = hidden
            for block in blocks:  # type: ignore[attr-defined]
                state = state + nn.functional.silu(block(state))
            found.append(output(state))
        return found


def build_heads(directory: Path, heads: int, blocks: int, *, naming: Naming = "vllm", **config: Any) -> ReferenceHeads:
    """Saves random heads for models of 64 x 2048, under the names of FasterDecoding's first releases or of vLLM."""
    torch.manual_seed(5)
    made = ReferenceHeads(heads, blocks, 64, 2048)
    tensors = {}
    for name, value in made.state_dict().items():
        _, head, *place = name.split(".")
        if naming == "vllm":
            of = f"blocks.{head}.layers" if name.startswith("blocks") else f"lm_heads.{head}"
            tensors[".".join((of, *place))] = value
        elif name.startswith("blocks"):
            tensors[f"{head}.{place[0]}.linear.{place[1]}"] = value
        else:
            tensors[f"{head}.{blocks}.weight"] = value
    counts = {"num_heads": heads, "num_hidden_layers": blocks}
    if naming == "first":
        counts = {"medusa_num_heads": heads, "medusa_num_layers": blocks}
    directory.mkdir(parents=True)
    save_file(tensors, directory / ("model.safetensors" if naming == "vllm" else "medusa_lm_head.safetensors"))
    (directory / "config.json").write_text(json.dumps(counts | config))
    return made.eval()


@torch.no_grad()
def states(model: Path, text: Sequence[int]) -> Tensor:
    """Returns the normed states `[tokens, hidden]` of a text, by transformers."""
    found: Tensor = load_reference(model).model(torch.tensor([list(text)])).last_hidden_state[0]
    return found
