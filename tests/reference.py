"""The reference that every golden test compares with: transformers, greedy, in fp32, on small random models.

Two correct programs may disagree where the two best tokens are closer than fp32's own error. So prompts whose
reference comes that close are dropped, by the reference's figures alone, before our engine has run; at most one in
ten, and printed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

SAFETY_FACTOR = 20.0
"""A margin counts as safe at so many times the measured error."""
MOST_DROPPED = 0.1
BATCH_PROMPTS = 8
"""Prompts that the reference computes together: of about one length, so that little of a batch is padding."""


@dataclass(frozen=True)
class Golden:
    """A prompt, the tokens that follow it, and the distance between the best two logits at each of them."""

    prompt: list[int]
    tokens: list[int]
    margins: list[float]


def build_model(directory: Path, config: Any, *, seed: int = 0, shard_size: str = "5GB") -> Path:
    """Saves a random model of `config`. Biases and norms, which start at 0 and 1, are made random as well."""
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = _class_of(config).from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.add_(torch.randn_like(buffer), alpha=0.2)
    model.save_pretrained(directory, max_shard_size=shard_size)
    return directory


def make_prompts(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in lengths]


def load_reference(directory: Path) -> Any:
    """Transformers' own model in fp32 with its plainest attention, which shares no operator with ours."""
    transformers.utils.logging.disable_progress_bar()
    kind = _class_of(AutoConfig.from_pretrained(directory))
    return kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def _class_of(config: Any) -> Any:
    return AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM


Process = Callable[[list[int], list[int], Tensor], Tensor]
"""Changes the logits `[1, vocab]` of a text, of which the prompt and the output so far are given."""


def unchanged(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
    return logits


def golden(
    directory: Path,
    prompts: Sequence[list[int]],
    new_tokens: int,
    process: Process = unchanged,
    load: Callable[[Path], Any] = load_reference,
    most_dropped: float = MOST_DROPPED,
    safety: float = SAFETY_FACTOR,
) -> list[Golden]:
    """Returns greedy continuations that are safe to compare; asserts that at most `most_dropped` of the prompts are
    not.

    Tokens count as safe from `safety` times the measured error on.
    """
    model = load(directory)
    runs = _greedy(model, prompts, new_tokens, process)
    error = max(float((logits - _one_pass(model, found)).abs().max()) for found, logits in runs)
    safe = [run for run, _ in runs if min(run.margins) >= safety * error]
    dropped = len(runs) - len(safe)
    print(f"reference {directory.name}: fp32 error {error:.2e}, {dropped} of {len(runs)} prompts dropped")
    assert dropped <= most_dropped * len(runs), f"{dropped} of {len(runs)} prompts are too close to call"
    return safe


@torch.inference_mode()
def _greedy(model: Any, prompts: Sequence[list[int]], new_tokens: int, process: Process) -> list[tuple[Golden, Tensor]]:
    """Token by token over transformers' cache; each run with its logits `[new_tokens, vocab]`, not yet processed.

    Prompts of about one length are a batch, padded on the left, with the positions that each has alone: what
    `_one_pass` finds for a text alone tells of any other.
    """
    found: dict[int, tuple[Golden, Tensor]] = {}
    by_length = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    for begin in range(0, len(prompts), BATCH_PROMPTS):
        numbers = by_length[begin : begin + BATCH_PROMPTS]
        batch = [prompts[number] for number in numbers]
        found |= zip(numbers, _greedy_batch(model, batch, new_tokens, process), strict=True)
    return [found[number] for number in range(len(prompts))]


def _greedy_batch(
    model: Any, prompts: Sequence[list[int]], new_tokens: int, process: Process
) -> list[tuple[Golden, Tensor]]:
    """The same for prompts that are computed together."""
    runs = [Golden(prompt, [], []) for prompt in prompts]
    width = max(map(len, prompts))
    inputs = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache, rows = None, []
    for _ in range(new_tokens):
        output = model(inputs, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[:, -1])
        for run, logits in zip(runs, rows[-1], strict=True):
            best = process(run.prompt, run.tokens, logits[None].clone())[0].topk(2)
            run.tokens.append(int(best.indices[0]))
            run.margins.append(float(best.values[0] - best.values[1]))
        inputs = torch.tensor([run.tokens[-1:] for run in runs])
        mask = torch.cat((mask, torch.ones_like(inputs)), 1)
        positions = positions[:, -1:] + 1
    return list(zip(runs, torch.stack(rows, 1), strict=True))


@torch.inference_mode()
def _one_pass(model: Any, run: Golden) -> Tensor:
    """The same logits from one pass over prompt and answer: what differs is fp32's rounding."""
    logits: Tensor = model(torch.tensor([run.prompt + run.tokens[:-1]]), use_cache=False).logits[0]
    return logits[len(run.prompt) - 1 :]


@torch.inference_mode()
def logprobs(model: Any, tokens: Sequence[int]) -> Tensor:
    """Log-probabilities `[tokens, vocab]` of what comes behind each token, from one pass over all of them."""
    logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits.double().log_softmax(-1)
