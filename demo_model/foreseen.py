"""Measures how often Medusa heads predict greedy answers: `python -m demo_model.foreseen [DIR] [--choose]`.

The questions are held out from training. A draft token counts only if all draft tokens before it are right.
With `--choose`, the most frequently right draft tokens, counted on other questions, are written to config.json as
`medusa_choices`: each is a path of ranks among the heads' candidates, and comes after the path that it extends.
"""

import argparse
import json
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_model.corpus import conversations
from demo_model.evaluate import generate, prompt
from demo_model.medusa import HEADS, Heads
from demo_model.train import WEIGHTS

SEED, CHOOSING_SEED = 1234, 4321
SAMPLED_CONVERSATIONS = 120
CHOICES, RANKS = 32, 10
"""Draft tokens of a tree, and ranks of a head that may be among them."""


def saved_heads(directory: Path, hidden: int) -> Heads:
    """Reads the heads that `demo_model.medusa` has saved, in fp32."""
    config = json.loads((directory / "config.json").read_text())
    heads = Heads(config["num_heads"], config["num_hidden_layers"], hidden)
    tensors = load_file(directory / "model.safetensors")
    for head, blocks in enumerate(heads.heads):
        for layer, block in enumerate(blocks):
            named = {name: tensors[f"blocks.{head}.layers.{layer}.{name}"].float() for name in ("weight", "bias")}
            block.load_state_dict(named)
    return heads


@torch.no_grad()
def ranks(
    base: LlamaForCausalLM,
    heads: Heads,
    tokenizer: PreTrainedTokenizerBase,
    samples: int = SAMPLED_CONVERSATIONS,
    seed: int = SEED,
) -> Tensor:
    """Returns `[positions, heads]`: the rank, from 0 on, of the actual token among a head's candidates.

    Positions are those in answers that are followed by a token for each head.
    """
    asked = [prompt(tokenizer, talk) for talk in islice(conversations(seed), samples)]
    found = []
    for text, answer in zip(asked, generate(base, tokenizer, asked), strict=True):
        begin = len(tokenizer.encode(text, add_special_tokens=False))
        ids = torch.tensor([[*tokenizer.encode(text + answer, add_special_tokens=False), tokenizer.eos_token_id]])
        hidden = base.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        count = ids.shape[1] - begin - len(heads.heads)  # of places: the state before each is read
        if count <= 0:
            continue
        of_answer = []
        for head, states in enumerate(heads.states(hidden[begin - 1 : begin - 1 + count])):
            logits = F.linear(states, base.lm_head.weight)
            came = logits.gather(1, ids[0, begin + head + 1 : begin + head + 1 + count, None])
            of_answer.append((logits > came).sum(1))
        found.append(torch.stack(of_answer, dim=1))
    return torch.cat(found)


def choices(found: Tensor, count: int = CHOICES) -> list[list[int]]:
    """Returns the `count` paths of ranks that are right at the most positions of `ranks`, best first."""
    every = torch.ones(len(found), dtype=torch.bool)
    waiting = [([0], every)]  # paths, and where the path before each comes true
    best: list[list[int]] = []
    while waiting and len(best) < count:
        came = [before & (found[:, len(path) - 1] == path[-1]) for path, before in waiting]
        at = int(torch.stack(came).sum(1).argmax())
        path, before = waiting.pop(at)
        best.append(path)
        if path[-1] + 1 < RANKS:
            waiting.append(([*path[:-1], path[-1] + 1], before))
        if len(path) < found.shape[1]:
            waiting.append(([*path, 0], came[at]))
    return best


def tokens_a_step(found: Tensor, paths: list[list[int]]) -> float:
    """Returns the mean tokens of a step that verifies these paths of ranks."""
    right = [(found[:, : len(path)] == torch.tensor(path)).all(1).float().mean() for path in paths]
    return 1 + float(torch.stack(right).sum())


def report(directory: Path, tokenizer: PreTrainedTokenizerBase, base: LlamaForCausalLM) -> str:
    """Returns a line for each head, and the tokens of a step with a chain, and with the first choices of the tree."""
    found = ranks(base, saved_heads(directory, base.config.hidden_size), tokenizer)
    right = (found == 0).cumprod(1).float().mean(0)
    lines = [f"{len(found)} places of greedy answers, guesses of {directory.name}:"]
    for head, chain in enumerate(right.tolist()):
        alone, of_three = ((found[:, head] < most).float().mean() for most in (1, 3))
        lines.append(f"head {head + 1}: foreseen {chain:.1%}, right {alone:.1%}, among its first three {of_three:.1%}")
    lines.append(f"tokens a step: {1 + right.sum():.2f}")
    paths = json.loads((directory / "config.json").read_text()).get("medusa_choices", [])
    for count in (4, 8, 16, 32):
        lines += [f"first {count} choices: {tokens_a_step(found, paths[:count]):.2f}"] if count <= len(paths) else []
    return "\n".join(lines)


def choose(directory: Path, tokenizer: PreTrainedTokenizerBase, base: LlamaForCausalLM) -> None:
    """Writes the best paths into config.json."""
    found = ranks(base, saved_heads(directory, base.config.hidden_size), tokenizer, seed=CHOOSING_SEED)
    path = directory / "config.json"
    fields = json.loads(path.read_text()) | {"medusa_choices": choices(found)}
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    """Prints the report of a directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=HEADS)
    parser.add_argument("--choose", action="store_true", help="write the best tree of guesses into config.json first")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    base = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32)
    if options.choose:
        choose(options.directory, tokenizer, base)
    print(report(options.directory, tokenizer, base))


if __name__ == "__main__":
    main()
