"""Measures what int8 weights cost in quality: perplexity, and how often the likeliest next token stays the same.

    python -m benchmarks.quality --model DIR [--text FILE] [--dtype bf16] [--tokens 8192]

The text is cut into pieces. At every position each side is given the same text so far, so a difference does not grow
along an answer. *Perplexity* is exp(mean of -log p(next token)); *agreement* is the share of positions where both
sides' likeliest tokens are equal. Without `--text`, it is the demo model's held-out questions and answers, in the
model's chat template.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import torch
from torch import Tensor
from transformers import AutoTokenizer

from core.config import EngineConfig, Quantization
from core.errors import BatonError, ModelError
from core.model_location import locate
from demo_model import animals, stories, sums
from demo_model.split import Split
from engine.device import dtype_name
from engine.executor import Executor
from engine.start.load import load_engine

PIECE = 512
"""Tokens that are read at once; also the longest context of a position."""


@dataclass(frozen=True)
class Scores:
    """Holds for each position with a next token that token's log-probability, and the likeliest token."""

    log_probabilities: Tensor
    likeliest: Tensor

    @property
    def perplexity(self) -> float:
        """Returns exp of the mean negative log-probability."""
        return math.exp(-float(self.log_probabilities.double().mean()))


def quiet(stage: str, percent: float) -> None:
    """Reports nothing: loading is not what is shown here."""


def held_out(directory: Path, tokens: int) -> list[list[int]]:
    """Returns so many tokens of conversations that the demo model was not trained on."""
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
            found.append(list(tokenizer.apply_chat_template(chat, return_dict=False))[:PIECE])
            count += len(found[-1])
    return found


def pieces(directory: Path, text: str, tokens: int) -> list[list[int]]:
    """Cuts the first tokens of a text into pieces."""
    ids = AutoTokenizer.from_pretrained(directory).encode(text)[:tokens]
    return [ids[begin : begin + PIECE] for begin in range(0, len(ids), PIECE) if len(ids) > begin + 1]


def texts_of(directory: Path, text: Path | None, tokens: int) -> list[list[int]]:
    """Reads so many tokens of a file, or of conversations that the demo model was not trained on. Raises `OSError`."""
    if text is None:
        return held_out(directory, tokens)
    return pieces(directory, text.read_text(errors="replace"), tokens)


def score(executor: Executor, texts: list[list[int]]) -> Scores:
    """Scores all texts, one behind the other."""

    def each() -> Iterator[tuple[Tensor, Tensor]]:
        for text in texts:
            logits = executor.logits(text)[:-1]
            chosen = logits.log_softmax(-1).gather(1, torch.tensor(text[1:])[:, None])
            yield chosen[:, 0], logits.argmax(-1)

    log_probabilities, likeliest = zip(*each(), strict=True)
    return Scores(torch.cat(log_probabilities), torch.cat(likeliest))


def compare(model: str, dtype: Literal["fp32", "bf16"], texts: list[list[int]]) -> dict[Quantization, Scores]:
    """Scores the same texts on both sides."""
    found: dict[Quantization, Scores] = {}
    sides: tuple[Quantization, ...] = ("none", "int8")
    for quantization in sides:
        config = EngineConfig(
            model=model, device="cpu", dtype=dtype, max_model_len=PIECE, kv_memory=64 << 20, quantization=quantization
        )
        executor = Executor(load_engine(config, quiet))
        found[quantization] = score(executor, texts)
        perplexity = found[quantization].perplexity
        print(f"{dtype_name(executor.engine.backend.dtype)}, quantization {quantization}: perplexity {perplexity:.4f}")
    return found


def main() -> int:
    """Prints three lines; returns 2, and prints one sentence, where the model or the text is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="model directory or hub id")
    parser.add_argument("--text", type=Path, help="a text file instead of the demo model's held-out conversations")
    parser.add_argument("--dtype", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--tokens", type=int, default=8192, help="so many of the text, about")
    given = parser.parse_args()
    try:
        directory = locate(given.model, quiet)
        texts = texts_of(directory, given.text, given.tokens)
        found = compare(given.model, given.dtype, texts)
    except (BatonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    plain, quantized = found["none"], found["int8"]
    same = float((plain.likeliest == quantized.likeliest).double().mean())
    ratio = quantized.perplexity / plain.perplexity
    print(f"{len(plain.likeliest)} positions: perplexity x {ratio:.4f}, the likeliest token is the same at {same:.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
