"""In bf16 the logits stay as close to the exact ones as transformers' own bf16 logits do.

Weights are rounded to bf16 first, so that all compute with the same ones; *exact* is transformers in fp32, whose own
error is 2^16 times smaller. Errors are the root of the mean square over the vocabulary, relative to the exact logits'.
What is asserted, of all rows together:

1. At most `MAX_RATIO` times transformers' error. Both round the same quantities, so both are draws of the same noise:
   the sum over rows of the hidden state's error, a vector of 128 dimensions. If but one in eight were independent, 132
   rows would tell each of the two figures to 1 / sqrt(2 * 16 * 132) = 1.5%, and their ratio to 2.2%. But rows of one
   text share the error of its KV; with a tenth of them independent it is 7%, and `MAX_RATIO` leaves almost three times
   that.
2. At most u sqrt(12 L + 3) for L layers, with u = 2^-8, bf16's unit round-off. A layer rounds 12 times on the way into
   the residual stream (norm, qkv, rope, probabilities, attention, output, sum; norm, gate and up, product, down, sum),
   the ends 3 times (embedding, last norm, logits). Roundings are independent, so their squares add; each is at most u,
   0.4 u in the root mean square, which leaves 2.4 for what a layer amplifies.

And no row is further off than twice the furthest of transformers': a wrong row would drown among 132.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from contracts.kv.spec import blocks_for
from engine.executor import Executor
from engine.plan import StepPlan, Work
from tests.engine.drive import GREEDY
from tests.engine.test_golden import BACKENDS, make_executor
from tests.reference import build_model, load_reference, make_prompts
from tests.variants import VARIANTS

MAX_RATIO = 1.2
MAX_FURTHEST_RATIO = 2.0
UNIT_ROUNDOFF = 2.0**-8
SEQUENCES, LENGTH, ALONE = 4, 72, 32
"""Texts, their tokens, and how many of those come one by one, as decoding has them; the others in chunks of 13."""


def build_rounded(directory: Path, config: Any) -> Path:
    """A random model whose weights are bf16's values, stored in fp32."""
    build_model(directory, config)
    weights = load_file(directory / "model.safetensors")
    rounded = {name: weight.bfloat16().float() for name, weight in weights.items()}
    save_file(rounded, directory / "model.safetensors", {"format": "pt"})
    return directory


@torch.inference_mode()
def reference_logits(directory: Path, texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """`[texts, ALONE + 1, vocab]` of each text's last tokens: exact, and transformers' in bf16."""
    rough = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, attn_implementation="eager").eval()
    found = [model(torch.tensor(texts)).logits[:, -ALONE - 1 :].float() for model in (load_reference(directory), rough)]
    return found[0], found[1]


def our_logits(executor: Executor, texts: list[list[int]], spoil_at: int = -1) -> Tensor:
    """The same of ours. At position `spoil_at` a block of the first text's KV is lost in one layer."""
    inner, rows = executor.engine.model.logits, []

    def logits(hidden: Tensor) -> Tensor:
        rows.append(inner(hidden).clone())
        return rows[-1].clone()  # sampling may write to it

    executor.engine.model.logits = logits  # type: ignore[method-assign]
    each = blocks_for(LENGTH, 16)
    tables = [list(range(1 + each * number, 1 + each * (number + 1)))[::-1] for number in range(len(texts))]
    begin = 0
    while begin < LENGTH:
        if begin == spoil_at:
            executor.engine.pool.layers[1][tables[0][1]].zero_()
        end = min(begin + 13, LENGTH - ALONE) if begin < LENGTH - ALONE else begin + 1
        sampling = GREEDY if end >= LENGTH - ALONE else None
        works = [Work(n, begin, text[begin:end], (tables[n],), sampling) for n, text in enumerate(texts)]
        executor.launch(StepPlan(begin, works))
        executor.collect()
        begin = end
    return torch.stack(rows, 1).cpu()


def errors(found: Tensor, exact: Tensor) -> tuple[float, float]:
    """Of all rows together, and of the furthest."""
    off, size = (found - exact).double().square().mean(-1), exact.double().square().mean(-1)
    return float((off.mean() / size.mean()).sqrt()), float((off / size).max().sqrt())


@pytest.mark.parametrize(
    "variant", ["llama", "llama-biases", "llama-odd-head", "mistral-window", "qwen2", "qwen3", "granite", "glm4"]
)
def test_logits_are_as_close_to_the_exact_ones_as_transformers(variant: str, tmp_path: Path) -> None:
    config = VARIANTS[variant]()
    directory = build_rounded(tmp_path / variant, config)
    texts = make_prompts([LENGTH] * SEQUENCES, config.vocab_size)
    exact, theirs = reference_logits(directory, texts)
    their_error, their_furthest = errors(theirs, exact)
    for backend in BACKENDS:
        executor = make_executor(directory, dtype="bf16", cpu_backend=backend)
        error, furthest = errors(our_logits(executor, texts), exact)
        print(f"{variant} {backend}: {error:.4f}, transformers {their_error:.4f}; {furthest:.4f}, {their_furthest:.4f}")
        assert error <= MAX_RATIO * their_error, backend
        assert error <= UNIT_ROUNDOFF * (12 * config.num_hidden_layers + 3) ** 0.5, backend
        assert furthest <= MAX_FURTHEST_RATIO * their_furthest, backend


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_lost_in_one_layer_for_a_single_row_is_noticed(backend: str, tmp_path: Path) -> None:
    """The mutation that shows that the comparison above would see it."""
    config = VARIANTS["llama"]()
    directory = build_rounded(tmp_path / "model", config)
    texts = make_prompts([LENGTH] * SEQUENCES, config.vocab_size)
    exact, theirs = reference_logits(directory, texts)
    executor = make_executor(directory, dtype="bf16", cpu_backend=backend)
    _, furthest = errors(our_logits(executor, texts, spoil_at=LENGTH - 1), exact)
    assert furthest > MAX_FURTHEST_RATIO * errors(theirs, exact)[1]
