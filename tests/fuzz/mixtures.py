"""`python -m tests.fuzz.mixtures` asks crowds of random requests of one engine for long; each is answered as alone.

What a crowd is, and what it is asked, is in `tests/engine/mixtures.py`: every kind of sampling, preemption, handover,
attempts that go on where others died, requests that are given up. Weights are random numbers, on a CPU in fp32.
"""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from contracts.kinds import Positive, Seconds
from infra.cli import parse_or_exit
from tests.engine.grammars.answering import random_model
from tests.engine.mixtures import Mixture
from tests.engine.test_golden import make_engine


class MixturesConfig(Struct, frozen=True, kw_only=True):
    """Asks crowds of random requests together, and says where an answer is not the one that is given alone."""

    seconds: Annotated[Seconds, Meta(description="seconds after which no other crowd begins")] = 600.0
    seed: Annotated[int, Meta(ge=0, description="of the first crowd; the next has the next")] = 0
    crowd: Annotated[Positive, Meta(description="requests of a crowd")] = 24
    longest: Annotated[Positive, Meta(description="tokens of an answer, at most")] = 40
    window: Annotated[int, Meta(ge=0, description="tokens that the model's second layer sees; 0: all")] = 0
    backend: Annotated[
        Literal["native", "torch", "triton"], Meta(description="operators; triton needs TRITON_INTERPRET=1")
    ] = "native"


def main() -> int:
    """Prints what came of it; returns 1 where an answer was wrong."""
    given = parse_or_exit(MixturesConfig, "python -m tests.fuzz.mixtures")
    with tempfile.TemporaryDirectory() as directory:
        model = random_model(Path(directory) / "model", window=given.window)
        mixtures = []
        for depth in (1, 2):
            prefill, decode = (
                replace(make_engine(model, cpu_backend=given.backend, block_size=8), launch_depth=depth)
                for _ in range(2)
            )
            mixtures.append(Mixture((prefill, decode), model))
        end, seed, wrong = time.monotonic() + given.seconds, given.seed, []
        while time.monotonic() < end:
            for mixture in mixtures:
                wrong += mixture.wrong(seed, given.crowd, given.longest)
            seed += 1
    print("\n".join(wrong))
    print(f"{seed - given.seed} crowds, in steps one by one and launched ahead: {len(wrong)} answers are wrong")
    print(sum((mixture.seen for mixture in mixtures), start=type(mixtures[0].seen)()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
