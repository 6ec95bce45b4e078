"""Measured workloads, and the targets beside the best peer."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """`requests` x `prompt`→`output` tokens, all requests there at the start."""

    requests: int
    prompt: int
    output: int

    def __str__(self) -> str:
        return f"{self.requests} x {self.prompt}→{self.output}"

    @property
    def longest(self) -> int:
        return self.prompt + self.output

    @property
    def counted(self) -> str:
        return "prompt" if self.output == 1 else "output"

    def rate(self, seconds: float) -> float:
        return self.requests * (self.prompt if self.output == 1 else self.output) / seconds

    def prompts(self, vocabulary: int, seed: int) -> list[list[int]]:
        draw = random.Random(f"{self} {seed}")
        return [[draw.randrange(vocabulary) for _ in range(self.prompt)] for _ in range(self.requests)]


TARGETS = {
    Workload(1, 16, 128): 1.0,
    Workload(8, 16, 128): 1.8,
    Workload(32, 16, 128): 1.5,
    Workload(1, 1024, 1): 1.3,
    Workload(16, 256, 64): 1.4,
}
"""Our rate over that of the best peer."""
EXPERTS_TARGETS = {Workload(1, 16, 128): 1.0, Workload(8, 16, 128): 1.0, Workload(32, 16, 128): 1.0}
"""The same of a mixture of experts; the others have none."""
QUANTIZED_TARGETS = {
    "int4": {
        "llama.cpp": {
            Workload(1, 16, 128): 1.1,
            Workload(8, 16, 128): 1.8,
            Workload(32, 16, 128): 1.8,
            Workload(1, 1024, 1): 1.3,
        },
        "baton, plain": {Workload(1, 16, 128): 2.2, Workload(1, 1024, 1): 1.0},
    },
    "int8": {"llama.cpp": {Workload(1, 16, 128): 1.1, Workload(8, 16, 128): 1.8, Workload(32, 16, 128): 1.8}},
}
"""Our rate with quantized weights over that of another system: a peer with as many bits, or ours with plain weights."""
LIMIT_TARGETS = {"int4": {Workload(1, 16, 128): 80.0}, "int8": {}}
"""The same over the limit, in percent."""
WORKLOADS = tuple(TARGETS)
DECODE_SWEEP = tuple(Workload(1 << power, 16, 64) for power in range(7))
PROMPT_SWEEP = tuple(Workload(1, 1 << power, 1) for power in range(7, 13))
