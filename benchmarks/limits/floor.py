"""Computes the least time of a workload on a machine: bytes over bandwidth, or operations over the matrix rate.

That is the roofline of Williams, Waterman and Patterson (2009) for each step: the larger of reading and multiplying.
Attention's arithmetic, activations, routers and all else between matrices are left out, so nothing is faster. A step
reads the experts that its tokens use: the expected number for random choices.
"""

from dataclasses import dataclass

import torch

from benchmarks.limits.machine import Machine
from benchmarks.limits.workloads import Workload
from contracts.kinds import Quantization
from engine.model.config import ExpertsMLP, LatentAttention, ModelConfig, TextModel
from engine.model.quantization import bytes_of_value, of_head


@dataclass(frozen=True)
class Mixture:
    """Experts of each layer, experts that a token uses, and values of an expert's matrices."""

    layers: int
    experts: int
    used: int
    values: int

    def met(self, tokens: int) -> float:
        return self.values * self.experts * (1 - (1 - self.used / self.experts) ** tokens)


DENSE = Mixture(1, 1, 1, 0)
"""There are no experts."""


@dataclass(frozen=True)
class Work:
    """Size of a model: values of its matrices, bytes of a value, bytes of a token's KV.

    `every` token is multiplied by most; by the `head`, and by the last layer behind its keys and values, only tokens
    that are `sampled` from. Layers are without experts, which are a `mixture`. A value of the head has a `head_width`
    of its own.
    """

    every: int
    sampled: int
    width: float
    token_bytes: int
    head: int = 0
    head_width: float = 0.0
    mixture: Mixture = DENSE

    @property
    def bytes(self) -> int:
        experts = self.mixture.layers * self.mixture.experts * self.mixture.values
        return int(self._read(experts))

    def read(self, tokens: int, sampled: int) -> float:
        mixture = self.mixture
        return self._read((mixture.layers - 1) * mixture.met(tokens) + mixture.met(sampled))

    def _read(self, experts: float) -> float:
        return (self.every + self.sampled + experts) * self.width + self.head * self.head_width

    def operations(self, tokens: int, sampled: int) -> int:
        experts = self.mixture.used * self.mixture.values
        every, last = self.every + (self.mixture.layers - 1) * experts, self.sampled + self.head + experts
        return 2 * (tokens * every + sampled * last)


@dataclass(frozen=True)
class Timing:
    """The seconds from the start to the last first token, and to the end."""

    prompts: float
    total: float


def work_of(model: TextModel, dtype: torch.dtype, quantization: Quantization = "none") -> Work:
    assert isinstance(model, ModelConfig), "of models that transformers computes the sizes are not known"
    hidden, layers = model.hidden_size, len(model.layers)
    attention, mlp = model.layers[0].attention, model.layers[0].mlp
    if isinstance(attention, LatentAttention):
        kept = attention.latent_rank + attention.rope_dim
        keys_values = hidden * kept
        others = _latent_values(attention, hidden)
    else:
        kept = 2 * attention.kv_heads * attention.head_dim
        keys_values = hidden * kept
        others = 2 * hidden * attention.heads * attention.head_dim
    mixture = DENSE
    if isinstance(mlp, ExpertsMLP):
        others += 3 * hidden * mlp.shared
        mixture = Mixture(layers, mlp.experts, mlp.used, 3 * hidden * mlp.intermediate)
    else:
        others += 3 * hidden * mlp.intermediate
    return Work(
        every=layers * keys_values + (layers - 1) * others,
        sampled=others,
        width=bytes_of_value(dtype, quantization),
        token_bytes=layers * kept * dtype.itemsize,
        head=model.vocab_size * hidden,
        head_width=bytes_of_value(dtype, of_head(quantization)),
        mixture=mixture,
    )


def _latent_values(attention: LatentAttention, hidden: int) -> int:
    """Counts the weights of queries, of each head's keys and values in the absorbed form, and of the output."""
    heads, rank, query = attention.heads, attention.query_rank, attention.nope_dim + attention.rope_dim
    queries = rank * (hidden + heads * query) if rank else hidden * heads * query
    absorbed = heads * attention.latent_rank * (attention.nope_dim + attention.value_dim)
    return queries + absorbed + hidden * heads * attention.value_dim


def floor(workload: Workload, machine: Machine, work: Work, batch_tokens: int) -> Timing:
    rows, tokens = workload.requests, workload.requests * workload.prompt
    read = _prompt_bytes(workload, work, batch_tokens)
    prompts = max(read / machine.read, work.operations(tokens, rows) / machine.multiply)
    multiply = work.operations(rows, rows) / machine.multiply
    weights = work.read(rows, rows)
    steps = (max((weights + kept) / machine.read, multiply) for kept in _kept(workload, work))
    return Timing(prompts, prompts + sum(steps))


def _prompt_bytes(workload: Workload, work: Work, batch_tokens: int) -> float:
    tokens = workload.requests * workload.prompt
    return -(-tokens // batch_tokens) * work.read(min(tokens, batch_tokens), workload.requests)


def _kept(workload: Workload, work: Work) -> list[int]:
    lengths = range(workload.prompt + 1, workload.prompt + workload.output)
    return [workload.requests * length * work.token_bytes for length in lengths]
