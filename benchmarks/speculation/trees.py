"""What Medusa heads' guesses bring, as a chain and as a tree: `python -m benchmarks.speculation.trees [--heads DIR]`.

Targets are the demo model, and larger models that compute what it does, with heads that guess what its heads do
(`benchmarks/models/widened.py`). Questions, ways of serving and what is compared are those of `draft.py`. The first so
many choices of the heads' tree are guessed: of the shipped heads four, which have none beside them, are the chain.
"""

import argparse
import tempfile
from pathlib import Path

import torch

from benchmarks.models.widened import widen, widen_heads
from benchmarks.processes.in_process import quiet
from benchmarks.speculation.draft import DEMO, TARGETS, compared, questions
from engine.start.load import LoadedEngine, load_engine
from infra.config.engine import EngineConfig

HEADS = DEMO.parent / "medusa"
GUESSES = (1, 2, 4, 6, 8, 12, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=Path, default=HEADS, help="Medusa heads (default: %(default)s)")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS), help="sizes")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4], help="sequences at once")
    parser.add_argument("--guesses", type=int, nargs="+", default=list(GUESSES))
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    prompts = questions(options.questions)
    print("| target | batch | guesses | tokens a step | guesses that came | against none |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as place:
        for name in options.targets:
            engine = loaded(name, options.heads, Path(place))
            for batch in options.batches:
                for line in compared(engine, prompts, batch, 0.0, options.repeats, options.guesses):
                    print(f"| {name} | {batch} | {line} |", flush=True)


def loaded(name: str, heads: Path, place: Path) -> LoadedEngine:
    directory, larger = DEMO, TARGETS[name]
    if larger is not None:
        directory = place / name
        widen(DEMO, directory, larger)
        widen_heads(heads, place / f"{name} heads", larger)
        heads = place / f"{name} heads"
    config = EngineConfig(
        model=str(directory),
        device="cpu",
        dtype="bf16",
        kv_memory=256 << 20,
        max_sequences=64,
        speculation="medusa",
        medusa=str(heads),
    )
    return load_engine(config, quiet)


if __name__ == "__main__":
    main()
