"""Trains Medusa heads for the demo model: `python -m demo_model.medusa [--out DIR]`.

Head k reads the state from which the next token is sampled, and predicts the token k positions after that (Medusa, Cai
et al., arXiv:2401.10774, with a frozen base). A head is residual blocks before the base's own output weights, so only
the blocks are shipped. It learns the base's probabilities at its position in the same texts, since the base's samples
there decide whether its draft token is accepted.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM

from demo_model.packing import Packer
from demo_model.tokenizer import Encoder
from demo_model.train import (
    BATCH_TOKENS,
    DECAY_SHARE,
    MATRIX_RATE,
    OTHER_RATE,
    SEED,
    WARMUP_STEPS,
    WEIGHTS,
    training_text,
)

HEADS = Path(__file__).parent / "medusa"
COUNT, LAYERS = 4, 2
TRAINING_STEPS = 700
NEXT_HEAD_WEIGHT = 0.8
"""A head's weight in the loss, relative to the head before it."""


class Heads(nn.Module):
    """The residual blocks of all heads, initialized to add nothing."""

    def __init__(self, count: int, layers: int, hidden: int) -> None:
        super().__init__()
        self.heads = [[_block(hidden) for _ in range(layers)] for _ in range(count)]
        self.all = nn.ModuleList([block for head in self.heads for block in head])

    def states(self, hidden: Tensor) -> Iterator[Tensor]:
        """Yields each head's `[rows, hidden]` of the base's states `[rows, hidden]`."""
        for head in self.heads:
            states = hidden
            for block in head:
                states = states + F.silu(block(states))
            yield states


def _block(hidden: int) -> nn.Linear:
    linear = nn.Linear(hidden, hidden)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def judged(base: LlamaForCausalLM, heads: Heads, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each head's divergence from the base at its positions, and how often both have the same likeliest token.

    Both `[heads]`, over the positions whose tokens, up to the predicted one, belong to an answer.
    """
    with torch.no_grad():
        hidden = base.model(input_ids=ids, use_cache=False).last_hidden_state
    count = len(heads.heads)
    last = ids.shape[1] - count - 1
    whole = (weights[:, 1:] > 0).unfold(1, count + 1, 1).all(-1)[:, :last]  # of a state's next tokens
    losses, agreed = [], []
    for head, states in enumerate(heads.states(hidden[:, :last][whole])):
        behind = hidden[:, head + 1 : head + 1 + last][whole]
        with torch.no_grad():
            told = F.linear(behind, base.lm_head.weight).float().log_softmax(-1)
        guessed = F.linear(states, base.lm_head.weight).float().log_softmax(-1)
        losses.append(F.kl_div(guessed, told, reduction="batchmean", log_target=True))
        agreed.append((guessed.argmax(-1) == told.argmax(-1)).float().mean())
    return torch.stack(losses), torch.stack(agreed)


def train(steps: int, packer: Packer, base: LlamaForCausalLM, heads: Heads) -> Tensor:
    """Runs the steps, and prints and returns how often each head predicts the base's likeliest token."""
    matrices, biases = ([each for each in heads.parameters() if each.ndim == ndim] for ndim in (2, 1))
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.0, momentum=0.95),
        torch.optim.AdamW(biases, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    weight = NEXT_HEAD_WEIGHT ** torch.arange(len(heads.heads))
    start, mean = time.perf_counter(), torch.zeros(len(weight))
    for step in range(steps):
        for group, rate in zip((g for o in optimizers for g in o.param_groups), rates, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / (DECAY_SHARE * steps))
        ids, weights = packer.next_batch()
        with torch.autocast("cpu", torch.bfloat16):
            losses, agreed = judged(base, heads, ids, weights)
        torch.autograd.backward((weight * losses).sum())
        torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        mean = agreed if step == 0 else 0.95 * mean + 0.05 * agreed
        if (step + 1) % 25 == 0:
            shares = " ".join(f"{100 * share:.1f}%" for share in mean.tolist())
            spent = time.perf_counter() - start
            print(f"step {step + 1}/{steps}  loss {losses.sum():.3f}  agree {shares}  {spent:.0f} s", flush=True)
    return mean


def save(heads: Heads, base: LlamaForCausalLM, out: Path) -> None:
    """Writes the heads by vLLM's names, in bf16, without output weights, which are the base's."""
    tensors = {
        f"blocks.{head}.layers.{layer}.{name}": value.detach().bfloat16()
        for head, blocks in enumerate(heads.heads)
        for layer, block in enumerate(blocks)
        for name, value in block.named_parameters()
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors")
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": base.config.hidden_size,
        "vocab_size": base.config.vocab_size,
        "num_heads": len(heads.heads),
        "num_hidden_layers": LAYERS,
        "medusa_fc_bias": True,
        "original_lm_head": True,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HEADS, help="directory for the heads (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=TRAINING_STEPS, help="training steps (default: %(default)s)")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    base = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.bfloat16)
    base.set_attn_implementation("eager")  # as in training
    base.requires_grad_(False)
    heads = Heads(COUNT, LAYERS, base.config.hidden_size)
    print(f"{sum(each.numel() for each in heads.parameters()):,} parameters", flush=True)
    packer = Packer(training_text(Encoder(tokenizer.backend_tokenizer)), BATCH_TOKENS, tokenizer.pad_token_id)
    train(options.steps, packer, base, heads)
    save(heads, base, options.out)


if __name__ == "__main__":
    main()
