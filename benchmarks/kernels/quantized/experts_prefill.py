"""Computes mixtures of experts with packed weights for many tokens: bound by multiplying."""

from collections.abc import Mapping, Sequence

from benchmarks.kernels.case import Limit, Size
from benchmarks.kernels.moe.experts import DEEPSEEK, GPT_OSS, MIXTRAL, QWEN_MOE, SMALL
from benchmarks.kernels.quantized.experts import PackedMixture
from benchmarks.kernels.quantized.weights import BLOCKS, INT4, INT8, MXFP4
from kernels.moe.packed_products import CONFIGS

LIMIT: Limit = "multiply"
CANDIDATES = CONFIGS

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]

SHAPES: Mapping[Size, Sequence[PackedMixture]] = {
    "full": [
        PackedMixture(8192, GPT_OSS, MXFP4),
        *(PackedMixture(tokens, QWEN_MOE, INT4) for tokens in (512, 8192)),
        PackedMixture(8192, MIXTRAL, INT8),
        PackedMixture(8192, DEEPSEEK, BLOCKS),
    ],
    "tiny": [PackedMixture(40, SMALL, MXFP4)],
    "compiled": [PackedMixture(100, SMALL, INT4), PackedMixture(512, GPT_OSS, MXFP4)],
}
