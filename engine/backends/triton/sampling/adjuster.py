"""Adjusts logits on CUDA by the Triton kernels, without waiting for the device."""

from torch import Tensor

from engine.backends.adjuster import FORBIDDEN_LOGIT
from engine.backends.adjusting.on_device import DeviceAdjuster
from kernels.sampling.forbid_tokens import forbid_tokens
from kernels.sampling.penalize import penalize
from kernels.sampling.token_mask import token_mask


class TritonOperators:
    def penalize(self, logits: Tensor, counts: Tensor, texts: Tensor, penalties: Tensor, sampled: Tensor) -> None:
        penalize(logits, counts, texts, penalties, sampled)

    def mask(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        token_mask(logits, rows, bits, FORBIDDEN_LOGIT)

    def forbid(self, logits: Tensor, entries: Tensor, sampled: Tensor) -> None:
        forbid_tokens(logits, entries, sampled, FORBIDDEN_LOGIT)


class TritonAdjuster(DeviceAdjuster):
    def __init__(self) -> None:
        super().__init__(TritonOperators())
