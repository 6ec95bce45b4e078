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
from engine.backends.triton.backend import TritonBackend
from engine.executor import Engine
from engine.kv.pool import KVPool
from engine.kv.spec import make_spec
from engine.model.families.registry import names_of
from engine.model.kv_layout import layout_of
from engine.model.linear import LinearFactory
from engine.model.read_config import read_config
from engine.model.transformer import Transformer

META = torch.device("meta")
BLOCK_TOKENS = 16
UNBOUNDED_TOKENS = 1 << 30


class WeightlessPool:
    """A KV pool without memory."""

    def __init__(self, engine_spec: Any) -> None:
        self.spec = engine_spec

    def begin_step(self, works: object = None, *, is_read: bool = True) -> None: ...

    def enter(self, group: int, blocks: object) -> None: ...

    def written(self, layer: int) -> None: ...

    def all_written(self) -> None: ...


def weightless_engine(
    shape: str, blocks: int, rows: int, longest: int, dtype: torch.dtype = torch.bfloat16, *, guesses: int = 0
) -> Engine:
    """Makes an engine with a pool of `blocks`, for decode steps of up to `rows` texts of `longest` tokens.

    Each text may have `guesses` draft tokens. Steps are launched and never collected.
    """
    with TemporaryDirectory() as directory:
        write_config(Path(directory), shape)
        return engine_of(Path(directory), blocks, rows, longest, dtype, guesses=guesses)


def engine_of(
    directory: Path,
    blocks: int,
    rows: int,
    longest: int,
    dtype: torch.dtype = torch.bfloat16,
    quantization: Quantization = "none",
    activations: Activations = "auto",
    guesses: int = 0,
) -> Engine:
    config = read_config(directory, longest)
    weights = RandomWeights(directory, META, dtype)
    backend = TritonBackend(META, dtype, activations)
    with torch.inference_mode():
        make = LinearFactory(weights, backend.linears, META, dtype, quantization=quantization)
        model: Transformer[Any] = Transformer(config, names_of(config), make, backend.layers, quiet)
        layouts = [layout_of(layer.attention) for layer in config.layers]
        layers = [
            torch.empty((blocks, each.vectors, BLOCK_TOKENS, each.width), dtype=dtype, device=META) for each in layouts
        ]
        decodes = backend.decode_steps(model, config, layers, rows, quiet, guesses)
    pool = cast(KVPool, WeightlessPool(make_spec(config, dtype, BLOCK_TOKENS, "none")))
    return Engine(backend, model, config, pool, backend.attention(config, layers), UNBOUNDED_TOKENS, decodes, None)
