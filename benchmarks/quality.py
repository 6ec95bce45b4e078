"""Measures what quantized weights, and KV in a byte, cost in quality.

    python -m benchmarks.quality --model DIR [--text FILE] [--dtype bf16] [--exact fp32] [--tokens 8192]

The text is cut into pieces. At every position each side is given the same text so far, so a difference does not grow
along an answer. *Perplexity* is exp(mean of -log p(next token)), and stands beside that of plain weights in the format
`--exact`: their ratio, with its standard error. *Divergence* is the mean of sum p log(p / q) in nats, of the exact
side's p to each side's q: it hangs less on single tokens of the text. It is taken over the exact side's likeliest 64
tokens, and all others together. *Agreement* is the share of positions where both likeliest tokens are equal. Without
`--text`, it is the demo model's held-out questions and answers, in the model's chat template.
"""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, get_args

import torch
from torch import Tensor
from transformers import AutoTokenizer

from benchmarks.processes.in_process import quiet
from benchmarks.report import head, row
from checkpoints.model_location import locate
from contracts.errors import BatonError, ModelError
from contracts.kinds import Activations, KVDtype, Quantization
from demo_model.lessons import animals, stories, sums
from demo_model.split import Split
from engine.executor import Executor
from engine.start.load import load_engine
from infra.config.engine import EngineConfig

MAX_PIECE_TOKENS = 512
"""Tokens that are read at once; also the longest context of a position."""
DIVERGENCE_TOKENS = 64
"""Tokens of a position that its divergence is taken over, one by one."""
MAX_PERPLEXITY_RATIOS: dict[Quantization, float] = {"int8": 1.005, "int4": 1.05, "fp8": 1.01}
"""The largest perplexity over the exact one's that the project wants of the demo model."""


@dataclass(frozen=True)
class Scores:
    """For each position with a next token that token's log-probability, and the likeliest token."""

    log_probabilities: Tensor
    likeliest: Tensor

    @property
    def perplexity(self) -> float:
        return math.exp(-float(self.log_probabilities.double().mean()))


def held_out(directory: Path, tokens: int) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    if tokenizer.chat_template is None:
        raise ModelError(f"{directory.name} has no chat template: give a text of your own with --text")
    rng, found, count = Random(0), [], 0
    while count < tokens:
        for exchange in (
            stories.story(rng, Split.HELD_OUT, stories.Reserve.KNOWN),
            sums.addition(rng, Split.HELD_OUT),
            animals.fact(rng, Split.HELD_OUT),
        ):
            chat = [{"role": "user", "content": exchange.ask}, {"role": "assistant", "content": exchange.answer}]
            found.append(list(tokenizer.apply_chat_template(chat, return_dict=False))[:MAX_PIECE_TOKENS])
            count += len(found[-1])
    return found


def pieces(directory: Path, text: str, tokens: int) -> list[list[int]]:
    ids = AutoTokenizer.from_pretrained(directory).encode(text)[:tokens]
    return [
        ids[begin : begin + MAX_PIECE_TOKENS] for begin in range(0, len(ids), MAX_PIECE_TOKENS) if len(ids) > begin + 1
    ]


def texts_of(directory: Path, text: Path | None, tokens: int) -> list[list[int]]:
    if text is None:
        return held_out(directory, tokens)
    return pieces(directory, text.read_text(errors="replace"), tokens)


def score(executor: Executor, texts: list[list[int]]) -> Scores:
    return joined([scores_of(logs_of(executor, text), text) for text in texts])


def logs_of(executor: Executor, text: list[int]) -> Tensor:
    return executor.logits(text)[:-1].log_softmax(-1).cpu()


def scores_of(logs: Tensor, text: list[int]) -> Scores:
    return Scores(logs.gather(1, torch.tensor(text[1:])[:, None])[:, 0], logs.argmax(-1))


def joined(scores: list[Scores]) -> Scores:
    return Scores(*map(torch.cat, zip(*((each.log_probabilities, each.likeliest) for each in scores), strict=True)))


@dataclass(frozen=True)
class Exact:
    """The likeliest tokens of the exact side, `[positions, NEAREST]`, of all texts one behind the other."""

    scores: Scores
    tokens: Tensor
    log_probabilities: Tensor


@dataclass(frozen=True)
class Compared:
    """Scores of one side beside the exact side."""

    scores: Scores
    divergence: float
    weights_bytes: int

    def ratio(self, exact: Scores) -> tuple[float, float]:
        moved = (exact.log_probabilities - self.scores.log_probabilities).double()
        ratio = math.exp(float(moved.mean()))
        return ratio, ratio * float(moved.std()) / len(moved) ** 0.5

    def agreement(self, exact: Scores) -> float:
        return float((exact.likeliest == self.scores.likeliest).double().mean())


def score_exactly(executor: Executor, texts: list[list[int]]) -> Exact:
    scores, likeliest = [], []
    for text in texts:
        logs = logs_of(executor, text)
        scores.append(scores_of(logs, text))
        likeliest.append(logs.topk(min(DIVERGENCE_TOKENS, logs.shape[1])))
    values, tokens = (torch.cat(each) for each in zip(*likeliest, strict=True))
    return Exact(joined(scores), tokens, values)


def compare(executor: Executor, texts: list[list[int]], exact: Exact) -> Compared:
    scores, divergences, begin = [], [], 0
    for text in texts:
        logs = logs_of(executor, text)
        scores.append(scores_of(logs, text))
        end = begin + len(logs)
        theirs = logs.gather(1, exact.tokens[begin:end])
        divergences.append(divergence(exact.log_probabilities[begin:end], theirs))
        begin = end
    found = float(torch.cat(divergences).double().mean())
    return Compared(joined(scores), found, executor.engine.model.weights_bytes())


def divergence(exact: Tensor, other: Tensor) -> Tensor:
    rest, others = (logs.double().exp().sum(1).neg().add(1).clamp(min=1e-12) for logs in (exact, other))
    p = exact.double()
    return (p.exp() * (p - other.double())).sum(1) + rest * (rest / others).log()


def measure(given: argparse.Namespace, texts: list[list[int]]) -> None:
    """Prints a table, line by line. Raises `BatonError` where the model or a setting is wrong."""

    def loaded(dtype: Any, quantization: Quantization, kv: KVDtype) -> Executor:
        config = EngineConfig(
            model=given.model,
            device=given.device,
            dtype=dtype,
            max_model_len=MAX_PIECE_TOKENS,
            kv_memory=given.kv_memory,
            quantization=quantization,
            activations=given.activations if quantization in ("int8", "fp8") else "auto",
            kv_dtype=kv,
        )
        return Executor(load_engine(config, quiet))

    executor = loaded(given.exact, "none", "auto")
    exact = score_exactly(executor, texts)
    found, name = exact.scores, executor.engine.backend.name
    print(
        f"{len(found.likeliest)} positions; {name} operators, {given.dtype}; "
        f"exact: {given.exact}, perplexity {found.perplexity:.4f}"
    )
    columns = "weights", "KV", "MB of weights", "perplexity", "÷ exact", "wanted", "divergence"
    print(head(*columns, "the likeliest is the same"), flush=True)
    sides: list[tuple[Quantization, KVDtype]] = [(each, "auto") for each in given.quantization]
    sides += [("none", each) for each in given.kv_dtype if each != "auto"]
    for quantization, kv in sides:
        side = compare(loaded(given.dtype, quantization, kv), texts, exact)
        ratio, error = side.ratio(found)
        wanted = f"≤ {MAX_PERPLEXITY_RATIOS[quantization]:.3f}" if quantization in MAX_PERPLEXITY_RATIOS else "-"
        weights, pool = (given.dtype if each in ("none", "auto") else each for each in (quantization, kv))
        size, perplexity = f"{side.weights_bytes / 1e6:.1f}", f"{side.scores.perplexity:.4f}"
        shares = f"{side.divergence:.5f}", f"{side.agreement(found):.2%}"
        print(row(weights, pool, size, perplexity, f"{ratio:.4f} ± {error:.4f}", wanted, *shares), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="model directory or hub id")
    parser.add_argument("--text", type=Path, help="a text file instead of the demo model's held-out conversations")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bf16", choices=("fp32", "bf16", "fp16"), help="of what is compared")
    parser.add_argument("--exact", default="fp32", choices=("fp32", "bf16", "fp16"), help="of what it is compared with")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of the text, about")
    forms = get_args(Quantization)
    parser.add_argument("--quantization", nargs="+", default=forms, choices=forms, metavar="FORM", help="some of them")
    kinds = get_args(KVDtype)
    parser.add_argument(
        "--kv-dtype", nargs="+", default=kinds, choices=kinds, metavar="FORM", help="of KV: some of them"
    )
    parser.add_argument(
        "--activations",
        default="auto",
        choices=get_args(Activations),
        help="8bit: on a GPU, texts meet int8 and fp8 weights as bytes",
    )
    parser.add_argument("--kv-memory", type=int, default=64 << 20, help="bytes for the KV of a text of 512 tokens")
    given = parser.parse_args()
    try:
        measure(given, texts_of(locate(given.model, quiet), given.text, given.tokens))
    except (BatonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
