"""All rows of the table, by the kernel's name: `rows.toml` says which, this file which case and kernel they are for."""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product, zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from benchmarks.kernels import attention, experts, layers, quantized, sampling
from benchmarks.kernels.case import Arguments, Case, Kernel, Limit, Shape, Size, Target
from benchmarks.kernels.kv import Heads, PartHeads, Vectors
from benchmarks.kernels.weights import Groups, Sizes
from kernels import block_copy, block_digest, gate, lora, rms_norm, rope_and_store, rotate_queries, store_latents
from kernels.attention import (
    expanded_attention,
    latent_decode_attention,
    latent_prefill_attention,
    paged_decode_attention,
    prefill_attention,
)
from kernels.moe import experts as plain_experts
from kernels.moe import packed_products, route, row_products, sort_by_expert
from kernels.quantized import dequantize, gate_rows, norm_rows, row_product
from kernels.quantized import product as weight_product
from kernels.quantized import rows as quantize_rows
from kernels.quantized.rows import RowFormat
from kernels.sampling import forbid_tokens, penalize, sample, score_floor, token_mask, token_scores

Value = Any
CASES: dict[str, tuple[Callable[..., Case], ModuleType]] = {
    "paged_decode_attention": (attention.decode, paged_decode_attention),
    "prefill_attention": (attention.prefill, prefill_attention),
    "latent_decode_attention": (attention.latent_decode, latent_decode_attention),
    "latent_prefill_attention": (attention.latent_prefill, latent_prefill_attention),
    "expanded_attention": (attention.expanded, expanded_attention),
    "store_latents": (layers.latent_store, store_latents),
    "rotate_queries": (layers.query_rotation, rotate_queries),
    "rms_norm": (layers.norm, rms_norm),
    "rope_and_store": (layers.rotation, rope_and_store),
    "gate": (layers.gated, gate),
    "lora": (layers.adapted, lora),
    "block_copy": (layers.block_work, block_copy),
    "block_digest": (layers.digesting, block_digest),
    "route": (experts.routing, route),
    "sort_by_expert": (experts.sorting, sort_by_expert),
    "experts": (experts.mixture, plain_experts),
    "experts_prefill": (experts.mixture, plain_experts),
    "quantized_experts": (experts.mixture, packed_products),
    "quantized_experts_prefill": (experts.mixture, packed_products),
    "quantized_experts_rows": (partial(experts.mixture, as_bytes=True), row_products),
    "quantized_product": (quantized.weight_product, weight_product),
    "quantized_product_prefill": (quantized.weight_product, weight_product),
    "quantized_dequantize": (quantized.dequantizing, dequantize),
    "quantized_row_product": (quantized.quantized_row_product, row_product),
    "quantized_rows": (quantized.row_quantizing, quantize_rows),
    "quantized_norm_rows": (quantized.normed_rows, norm_rows),
    "quantized_gate_rows": (quantized.gated_rows, gate_rows),
    "sample": (sampling.draw, sample),
    "score_floor": (sampling.floor, score_floor),
    "penalize": (sampling.penalized, penalize),
    "token_mask": (sampling.masked, token_mask),
    "forbid_tokens": (sampling.forbidden, forbid_tokens),
    "token_scores": (sampling.scored, token_scores),
}
"""Each kernel's case, and the module that has its candidate configs."""
LAUNCHED: dict[str, Callable[..., bool]] = {
    "block_copy": layers.encodable,
    "quantized_row_product": quantized.has_row_product,
    "quantized_experts_rows": experts.has_mixture_as_bytes,
}
"""Kernels of which a device may not support every row."""
KINDS: dict[str, Callable[..., Value]] = {
    "filters": sampling.Filters,
    "form": RowFormat,
    "groups": Groups,
    "heads": Heads,
    "layer": experts.ExpertLayer,
    "part_heads": PartHeads,
    "parts": lambda *parts: parts,
    "routing": route.Routing,
    "sizes": Sizes,
    "vectors": Vectors,
}
"""What a list or a table is in `rows.toml`, by the argument's name."""
TABLE = tomllib.loads(Path(__file__).with_name("rows.toml").read_text())


class Wanted(NamedTuple):
    """A row to be measured."""

    kernel: str
    shape: Shape
    limit: Limit


def rows(size: Size, kernels: list[str]) -> Iterator[Wanted]:
    for name in kernels:
        for shape in KERNELS[name].shapes(size):
            yield Wanted(name, shape, KERNELS[name].limit)


def in_turns(wanted: list[Wanted]) -> list[Wanted]:
    kernels = [[each for each in wanted if each.kernel == kernel] for kernel in KERNELS]
    return [each for turn in zip_longest(*kernels) for each in turn if each is not None]


def _grid(line: Mapping[str, Value]) -> Iterator[Arguments]:
    axes = [
        [value_of(name, each) for each in (given if isinstance(given, list) else [given])]
        for name, given in line.items()
    ]
    for values in product(*axes):
        yield dict(zip(line, values, strict=True))


def value_of(name: str, given: Value) -> Value:
    if name in TABLE["named"] and isinstance(given, str):
        given = TABLE["named"][name][given]
    if name == "target":
        return Target(given)
    if isinstance(given, list):
        return KINDS[name](*given)
    return KINDS[name](**given) if isinstance(given, dict) else given


def _kernel(name: str) -> Kernel:
    (make, module), table = CASES[name], TABLE["kernels"][name]
    full, tiny, compiled = ([each for line in table[size] for each in _grid(line)] for size in SIZES)
    launched = LAUNCHED.get(name, lambda **_: True)
    return Kernel(table["limit"], module.CANDIDATE_CONFIGS, make, full, tiny, compiled, launched)


SIZES: tuple[Size, ...] = ("full", "tiny", "compiled")
KERNELS: dict[str, Kernel] = {name: _kernel(name) for name in CASES}
