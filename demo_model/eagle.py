"""Trains an EAGLE head for the demo model: `python -m demo_model.eagle --out DIR [--steps N]`.

The head (Li et al. 2024, https://arxiv.org/abs/2401.15077) is one decoder layer. It reads a token's embedding and the
model's last hidden state before that token, and predicts the token's hidden state, from which the model's own head
makes tokens. The model is frozen. As in the paper, the loss is a smooth L1 distance between states, plus a tenth of the
cross entropy with the model's own distribution; input states have noise, since predicted states will replace them. No
head is shipped: with so small a model, running a head takes longer than the steps that it saves.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from demo_model.packing import Packer
from demo_model.tokenizer import PAD, SPECIAL, Encoder
from demo_model.train import BATCH_TOKENS, MATRIX_RATE, OTHER_RATE, SEED, WARMUP_STEPS, WEIGHTS, training_text

TRAINING_STEPS = 2000
ENTROPY_SHARE = 0.1
NOISE_SHARE = 0.2  # of the states' spread
DECAY_SHARE = 0.6


class EagleHead(nn.Module):
    """Predicts the states `[rows, length, hidden]` of tokens from their embeddings and the states before them."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([LlamaDecoderLayer(config, 0)])
        self.layers[0].input_layernorm = nn.Identity()  # the published heads have none

    def forward(self, embedded: Tensor, before: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Takes `embedded` and `before` `[rows, length, hidden]`, where `before` is 0 for each row's first token."""
        x = self.fc(torch.cat((embedded, before), dim=-1))
        x = torch.cat((torch.zeros_like(x[:, :1]), x[:, 1:]), dim=1)  # nothing was before the first
        guessed: Tensor = self.layers[0](x, attention_mask=mask, position_embeddings=angles)
        return guessed


def shifted(states: Tensor) -> Tensor:
    """Returns for each token the state `[rows, length, hidden]` of the token before it, and 0 for the first."""
    return F.pad(states, (0, 0, 1, 0))[:, :-1]


def head_loss(model: LlamaForCausalLM, head: EagleHead, ids: Tensor, weights: Tensor) -> tuple[Tensor, float]:
    """Returns the loss over the answers' tokens `[rows, length]`, and how often both have the same likeliest token."""
    length = ids.shape[1]
    with torch.no_grad():
        embedded = model.model.embed_tokens(ids)
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state.float()
        angles = model.model.rotary_emb(embedded, torch.arange(length)[None])
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None].to(torch.bfloat16)
        noise = (torch.rand_like(states) - 0.5) * (2 * NOISE_SHARE * states.std())
    guessed = head(embedded, shifted(states + noise), angles, mask)
    counts = F.pad(weights[:, 1:], (0, 1)) > 0
    wanted, found = states[counts], guessed[counts].float()
    true = F.linear(wanted, model.lm_head.weight).float()
    ours = F.linear(found, model.lm_head.weight).float()
    entropy = F.cross_entropy(ours, true.softmax(-1))
    agree = (true.argmax(-1) == ours.argmax(-1)).float().mean().item()
    return F.smooth_l1_loss(found, wanted) + ENTROPY_SHARE * entropy, agree


def train(steps: int, packer: Packer, model: LlamaForCausalLM, head: EagleHead) -> list[float]:
    """Runs the steps, prints progress, and returns each step's loss."""
    matrices = [p for p in head.parameters() if p.ndim == 2]
    others = [p for p in head.parameters() if p.ndim != 2]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    full = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    start, means = time.perf_counter(), (0.0, 0.0)
    losses: list[float] = []
    for step in range(steps):
        rate = min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / (DECAY_SHARE * steps))
        for group, whole in zip((g for o in optimizers for g in o.param_groups), full, strict=True):
            group["lr"] = whole * rate
        ids, weights = packer.next_batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss, agree = head_loss(model, head, ids, weights)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        found = losses[-1], agree
        means = found if step == 0 else (0.95 * means[0] + 0.05 * found[0], 0.95 * means[1] + 0.05 * found[1])
        if (step + 1) % 25 == 0:
            spent = time.perf_counter() - start
            print(f"step {step + 1}/{steps}  loss {means[0]:.3f}  agrees {means[1]:.1%}  {spent:.0f} s", flush=True)
    return losses


def save(head: EagleHead, config: LlamaConfig, out: Path) -> None:
    """Writes the head in the published format: `fc.weight`, `layers.0.…`, and a config with one layer."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.bfloat16().contiguous() for name, tensor in head.state_dict().items()}, out / "model.safetensors"
    )
    (out / "config.json").write_text(json.dumps(config.to_dict() | {"num_hidden_layers": 1}, indent=2) + "\n")


def main() -> None:
    """Loads the shipped model, trains a head for it, and saves the head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory for the head")
    parser.add_argument("--steps", type=int, default=TRAINING_STEPS, help="training steps (default: %(default)s)")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    model = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32, attn_implementation="eager")
    model.requires_grad_(False)
    bare = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    head = EagleHead(model.config)
    print(f"{sum(p.numel() for p in head.parameters()):,} parameters", flush=True)
    packer = Packer(training_text(Encoder(bare)), BATCH_TOKENS, SPECIAL.index(PAD))
    train(options.steps, packer, model, head)
    save(head, model.config, options.out)


if __name__ == "__main__":
    main()
