"""Makes an engine in the shape of a well-known model whose tensors have no memory: what a host does shows, alone.

Tensors are on PyTorch's `meta` device: operators check formats and shapes, and compute nothing.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch

from benchmarks.models.random_weights import RandomWeights
from benchmarks.models.shapes import write_config
from benchmarks.processes.in_process import quiet
from contracts.kinds import Activations, Quantization
from engine.adapters.slots import AdapterSlots
from engine.backends.base import StepSizes
from engine.backends.triton.backend import TritonBackend
from engine.engine import Engine
from engine.kv.pool import KVPool
from engine.kv.spec import make_spec
from engine.model.checkpoint.read_config import read_config
from engine.model.families.registry import names_of
from engine.model.kv_layout import layout_of
from engine.model.layers.adapted import AdapterTarget, Adapting, Expansion, LowRank
from engine.model.layers.linear_factory import LinearFactory
from engine.model.transformer import Transformer

META = torch.device("meta")
BLOCK_TOKENS = 16
UNBOUNDED_TOKENS = 1 << 30
ADAPTER_RANK = 16


class WeightlessAdapters(AdapterSlots):
    """Adapters without memory, called "1", "2" and so on, that change every linear layer of attention and MLP."""

    def __init__(self, make: LinearFactory[Any], adapters: int, dtype: torch.dtype) -> None:
        super().__init__(make.adapter_targets, adapters, ADAPTER_RANK, META, dtype)
        self._slots = {str(slot): slot for slot in range(1, adapters + 1)}
        for slot in self._slots.values():
            for target, linear in make.adapter_targets:
                linear.put(slot, _change(target, dtype))


def _change(place: AdapterTarget, dtype: torch.dtype) -> LowRank:
    ranks = len(place.sizes) * ADAPTER_RANK
    parts = [
        Expansion(
            sum(place.sizes[:part]), part * ADAPTER_RANK, torch.empty((ADAPTER_RANK, size), dtype=dtype, device=META)
        )
        for part, size in enumerate(place.sizes)
    ]
    return LowRank(torch.empty((ranks, place.inputs), dtype=dtype, device=META), tuple(parts))


class WeightlessPool:
    """A KV pool without memory."""

    def __init__(self, engine_spec: Any) -> None:
        self.spec = engine_spec

    def begin_step(self, works: object = None, *, is_read: bool = True) -> None: ...

    def enter(self, group: int, blocks: object) -> None: ...

    def written(self, layer: int) -> None: ...

    def all_written(self) -> None: ...


def weightless_engine(
    shape: str,
    blocks: int,
    rows: int,
    longest: int,
    dtype: torch.dtype = torch.bfloat16,
    *,
    guesses: int = 0,
    adapters: int = 0,
    mixed_tokens: int = 0,
) -> Engine:
    """Makes an engine with a pool of `blocks`, for decode steps of up to `rows` texts of `longest` tokens.

    Each text may have `guesses` draft tokens, and one of the `adapters` (their number). Mixed steps of up to
    `mixed_tokens` are recorded. Steps are launched and never collected.
    """
    with TemporaryDirectory() as directory:
        write_config(Path(directory), shape)
        return engine_of(
            Path(directory),
            blocks,
            rows,
            longest,
            dtype,
            guesses=guesses,
            adapters=adapters,
            mixed_tokens=mixed_tokens,
        )


def engine_of(
    directory: Path,
    blocks: int,
    rows: int,
    longest: int,
    dtype: torch.dtype = torch.bfloat16,
    quantization: Quantization = "none",
    activations: Activations = "auto",
    guesses: int = 0,
    adapters: int = 0,
    mixed_tokens: int = 0,
    trees: bool = False,
) -> Engine:
    config = read_config(directory, longest)
    weights = RandomWeights(directory, META, dtype)
    backend = TritonBackend(META, dtype, activations)
    with torch.inference_mode():
        adapting = Adapting(adapters, ADAPTER_RANK) if adapters else None
        make = LinearFactory(weights, backend.linears, META, dtype, adapting, quantization)
        model: Transformer[Any] = Transformer(config, names_of(config), make, backend.layers, quiet)
        layouts = [layout_of(layer.attention) for layer in config.layers]
        layers = [
            torch.empty((blocks, each.vectors, BLOCK_TOKENS, each.width), dtype=dtype, device=META) for each in layouts
        ]
        decodes = backend.decode_steps(
            model, config, layers, StepSizes(rows, guesses, mixed_tokens, trees=trees), quiet
        )
        slots = WeightlessAdapters(make, adapters, dtype) if adapters else None
    pool = cast(KVPool, WeightlessPool(make_spec(config, dtype, BLOCK_TOKENS, "none")))
    return Engine(backend, model, config, pool, backend.attention(config, layers), UNBOUNDED_TOKENS, decodes, slots)
