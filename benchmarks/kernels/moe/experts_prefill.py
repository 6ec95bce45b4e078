"""Computes mixtures of experts for many tokens: bound by multiplying."""

from collections.abc import Mapping, Sequence

from benchmarks.kernels.case import Limit, Size
from benchmarks.kernels.moe.experts import DEEPSEEK, DEEPSEEK_LITE, GPT_OSS, MIXTRAL, QWEN_MOE, SMALL, Mixture
from kernels.moe.experts import CANDIDATES

LIMIT: Limit = "multiply"

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]

SHAPES: Mapping[Size, Sequence[Mixture]] = {
    "full": [
        *(Mixture(8192, layer) for layer in (QWEN_MOE, MIXTRAL, GPT_OSS, DEEPSEEK_LITE)),
        *(Mixture(512, layer) for layer in (QWEN_MOE, MIXTRAL)),
        Mixture(8192, DEEPSEEK),
    ],
    "tiny": [Mixture(40, SMALL)],
    "compiled": [Mixture(100, SMALL), Mixture(256, QWEN_MOE._replace(bias=True))],
}
