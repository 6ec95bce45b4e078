"""Computes the least time of a workload on a machine: bytes over bandwidth, or operations over the matrix rate.

That is the roofline of Williams, Waterman and Patterson (2009), step by step: of a step's reading and its multiplying
the larger counts. Attention's arithmetic, activations and everything between matrices are left out, so nothing is
faster.
"""

from dataclasses import dataclass

import torch

from benchmarks.machine import Machine
from benchmarks.workloads import Workload
from core.config import Quantization
from core.kvspec import kv_bytes
from engine.model.config import ModelConfig, TextModel, heads_of


@dataclass(frozen=True)
class Work:
    """Holds what a model costs, in values of its matrices, bytes of a value, and bytes of a token's KV.

    `every` token is multiplied by most; by the head, and by the last layer behind its keys and values, only tokens that
    are `sampled` from.
    """

    every: int
    sampled: int
    width: int
    token_bytes: int

    @property
    def bytes(self) -> int:
        """Returns the bytes of all weights: what a step reads in which anything is sampled."""
        return (self.every + self.sampled) * self.width

    def operations(self, tokens: int, sampled: int) -> int:
        """Counts multiplications and additions of a step."""
        return 2 * (tokens * self.every + sampled * self.sampled)


@dataclass(frozen=True)
class Timing:
    """Holds the seconds from the start to the last first token, and to the end."""

    prompts: float
    total: float


def work_of(model: TextModel, dtype: torch.dtype, quantization: Quantization = "none") -> Work:
    """Computes the sizes of a model, whose layers are alike, in a number format; int8 weights take a byte each."""
    assert isinstance(model, ModelConfig), "of models that transformers computes the sizes are not known"
    hidden, width, layers = model.hidden_size, dtype.itemsize, len(model.layers)
    attention, mlp = heads_of(model.layers[0]), model.layers[0].mlp
    keys_values = 2 * hidden * attention.kv_heads * attention.head_dim
    others = 2 * hidden * attention.heads * attention.head_dim + 3 * hidden * mlp.intermediate
    return Work(
        every=layers * keys_values + (layers - 1) * others,
        sampled=others + model.vocab_size * hidden,
        width=width if quantization == "none" else 1,
        token_bytes=kv_bytes(1, 1, layers, attention.kv_heads, attention.head_dim, width),
    )


def floor(workload: Workload, machine: Machine, work: Work, batch_tokens: int) -> Timing:
    """Computes the least time, where prompts are computed `batch_tokens` at a time."""
    rows, tokens = workload.requests, workload.requests * workload.prompt
    read = _prompt_steps(workload, batch_tokens) * work.bytes
    prompts = max(read / machine.read, work.operations(tokens, rows) / machine.multiply)
    multiply = work.operations(rows, rows) / machine.multiply
    steps = (max((work.bytes + kept) / machine.read, multiply) for kept in _kept(workload, work))
    return Timing(prompts, prompts + sum(steps))


def intensity(workload: Workload, work: Work, batch_tokens: int) -> float:
    """Returns the operations for each byte read, over the whole workload: a roofline's other axis."""
    kept = _kept(workload, work)
    steps = _prompt_steps(workload, batch_tokens) + len(kept)
    return operations(workload, work) / (steps * work.bytes + sum(kept))


def operations(workload: Workload, work: Work) -> int:
    """Counts multiplications and additions of the whole workload. The last token of an answer is not computed with."""
    rows = workload.requests
    return work.operations(rows * (workload.prompt + workload.output - 1), rows * workload.output)


def _prompt_steps(workload: Workload, batch_tokens: int) -> int:
    return -(-workload.requests * workload.prompt // batch_tokens)


def _kept(workload: Workload, work: Work) -> list[int]:
    """Returns the bytes of KV that each decode step reads."""
    lengths = range(workload.prompt + 1, workload.prompt + workload.output)
    return [workload.requests * length * work.token_bytes for length in lengths]
