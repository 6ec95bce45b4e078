"""Measures the quality cost of KV in fewer bytes: perplexity, and agreement on the likeliest next token.

    python -m benchmarks.kv_quality --model DIR [--text FILE | --random] [--dtype bf16] [--tokens 8192]

Each text's first half is a prompt: one engine computes it, and all its KV goes through the codec into another engine's
pool, as in a handoff (`KVPool.read`, `KVPool.convert`). The other engine continues with the second half, given the text
so far at every position, so that differences do not grow. *Perplexity* is exp(mean of -log p(next token)) over second
halves; *agreement* is the share of their positions with the likeliest token of an engine that computed the whole text
itself. A *pool* of int8 or fp8 (`--kv-dtype`) rounds the KV of the whole text when it is stored; its engine computes
all of it. `--text` and the default texts are those of `benchmarks.quality`; `--random` takes random token ids.
"""

import argparse
import sys
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from benchmarks.processes.in_process import quiet
from benchmarks.quality import MAX_PIECE_TOKENS, Scores, joined, texts_of
from benchmarks.report import head, row
from checkpoints.model_location import locate
from contracts.errors import BatonError
from contracts.kinds import Codec, KVDtype
from contracts.kv.spec import PayloadConversion, WireForm, blocks_for
from engine.device import dtype_name
from engine.executor import Executor
from engine.start.load import load_engine
from infra.config.engine import EngineConfig

CODECS: tuple[Codec, ...] = get_args(Codec)
POOLS: tuple[KVDtype, ...] = ("int8", "fp8")


def random_texts(vocabulary: int, tokens: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(
        vocabulary, (max(1, tokens // MAX_PIECE_TOKENS), MAX_PIECE_TOKENS), generator=generator
    ).tolist()


def hand_off(sender: Executor, receiver: Executor, tokens: int, codec: Codec) -> None:
    group = sender.engine.pool.spec.groups[0]
    blocks = list(range(1, 1 + blocks_for(tokens, group.block_tokens)))
    form = WireForm(sender.engine.pool.spec.dtype, group.block_tokens, codec)
    for layer in group.layers:
        receiver.engine.pool.convert(
            PayloadConversion(form, 0, layer, blocks, 0, 0), sender.engine.pool.read(0, layer, blocks, codec)
        )


def scores_of(logits: Tensor, text: list[int]) -> Scores:
    following = torch.tensor(text[len(text) // 2 + 1 :])
    chosen = logits[:-1].log_softmax(-1).gather(1, following[:, None])
    return Scores(chosen[:, 0], logits[:-1].argmax(-1))


def compare(sender: Executor, receiver: Executor, texts: list[list[int]]) -> tuple[Scores, dict[Codec, Scores]]:
    whole: list[Scores] = []
    behind: dict[Codec, list[Scores]] = {codec: [] for codec in CODECS}
    for text in texts:
        half = len(text) // 2
        whole.append(scores_of(sender.logits(text)[half:], text))
        sender.logits(text[:half])  # what its last block holds beyond is zero, as when it is handed off
        for codec in CODECS:
            hand_off(sender, receiver, half, codec)
            behind[codec].append(scores_of(receiver.logits(text, half), text))
    return joined(whole), {codec: joined(scores) for codec, scores in behind.items()}


def score_whole(executor: Executor, texts: list[list[int]]) -> Scores:
    return joined([scores_of(executor.logits(text)[len(text) // 2 :], text) for text in texts])


def make(model: str, dtype: Literal["fp32", "bf16"], kv_dtype: KVDtype = "auto") -> Executor:
    config = EngineConfig(
        model=model, device="cpu", dtype=dtype, kv_dtype=kv_dtype, max_model_len=MAX_PIECE_TOKENS, kv_memory=64 << 20
    )
    return Executor(load_engine(config, quiet))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kv_quality", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="model directory or hub id")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", type=Path, help="a text file instead of the demo model's held-out conversations")
    source.add_argument("--random", action="store_true", help="random token ids, for a model with random weights")
    parser.add_argument("--dtype", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of the text, about; half are prompts")
    given = parser.parse_args()
    try:
        directory = locate(given.model, quiet)
        sender, receiver = make(given.model, given.dtype), make(given.model, given.dtype)
        if given.random:
            texts = random_texts(sender.engine.model_config.vocab_size, given.tokens)
        else:
            texts = texts_of(directory, given.text, given.tokens)
        texts = [each for each in texts if len(each) >= 4]
        whole, behind = compare(sender, receiver, texts)
        pools = {form: make(given.model, given.dtype, form) for form in POOLS}
        quantized = {form: score_whole(executor, texts) for form, executor in pools.items()}
    except (BatonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    group, name = sender.engine.pool.spec.groups[0], dtype_name(sender.engine.backend.dtype)
    print(f"{sender.engine.model_config.name}, {name}, {len(whole.likeliest)} positions behind a handoff")
    print(head("KV", "bytes", "perplexity", "x", "the likeliest token is the same"))
    print(row("no handoff", "", f"{whole.perplexity:.4f}", "", ""))
    rows = [(f"codec {codec}", group.wire_bytes(codec, name), found) for codec, found in behind.items()]
    for form, found in quantized.items():
        rows.append((f"pool {form}", pools[form].engine.pool.spec.groups[0].block_bytes, found))
    for kind, size, found in rows:
        share = size / group.block_bytes
        same = float((found.likeliest == whole.likeliest).double().mean())
        ratio = found.perplexity / whole.perplexity
        print(row(kind, f"{share:.1%}", f"{found.perplexity:.4f}", f"{ratio:.4f}", f"{same:.2%}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
