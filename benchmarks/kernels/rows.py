"""Lists all rows of the table: every kernel's module of this package, by the kernel's name."""

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.kernels import block_copy, gate, lora, rms_norm, rope_and_store, rotate_queries, store_latents
from benchmarks.kernels.attention import (
    latent_decode_attention,
    latent_prefill_attention,
    paged_decode_attention,
    prefill_attention,
)
from benchmarks.kernels.case import Limit, Rows, Shape, Size
from benchmarks.kernels.moe import experts, experts_prefill, route, sort_by_expert
from benchmarks.kernels.quantized import experts as quantized_experts
from benchmarks.kernels.quantized import experts_prefill as quantized_experts_prefill
from benchmarks.kernels.quantized import gate_rows, norm_rows, numbers, product, product_prefill, row_product
from benchmarks.kernels.quantized import rows as quantized_rows
from benchmarks.kernels.sampling import forbid_tokens, penalize, sample, score_floor, token_mask, token_scores

MODULES: dict[str, Rows] = {
    "paged_decode_attention": paged_decode_attention,
    "prefill_attention": prefill_attention,
    "latent_decode_attention": latent_decode_attention,
    "latent_prefill_attention": latent_prefill_attention,
    "store_latents": store_latents,
    "rotate_queries": rotate_queries,
    "rms_norm": rms_norm,
    "rope_and_store": rope_and_store,
    "gate": gate,
    "route": route,
    "sort_by_expert": sort_by_expert,
    "experts": experts,
    "experts_prefill": experts_prefill,
    "quantized_product": product,
    "quantized_product_prefill": product_prefill,
    "quantized_numbers": numbers,
    "quantized_row_product": row_product,
    "quantized_rows": quantized_rows,
    "quantized_norm_rows": norm_rows,
    "quantized_gate_rows": gate_rows,
    "quantized_experts": quantized_experts,
    "quantized_experts_prefill": quantized_experts_prefill,
    "lora": lora,
    "sample": sample,
    "score_floor": score_floor,
    "penalize": penalize,
    "token_mask": token_mask,
    "forbid_tokens": forbid_tokens,
    "token_scores": token_scores,
    "block_copy": block_copy,
}


class Wanted(NamedTuple):
    """Holds a row that is to be measured."""

    kernel: str
    shape: Shape
    limit: Limit


def rows(size: Size, kernels: list[str]) -> Iterator[Wanted]:
    """Lists rows of some kernels, in the table's order; of each those that have a target first: time may run out."""
    for name in kernels:
        module = MODULES[name]
        for shape in sorted(module.SHAPES[size], key=lambda shape: shape.target is None):
            yield Wanted(name, shape, module.LIMIT)
