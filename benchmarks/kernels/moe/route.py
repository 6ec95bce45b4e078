"""Chooses experts: bound by reading logits, and in truth by its launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target, random
from kernels.moe.route import CANDIDATES, Routing, reference, route
from kernels.tuning import Config

LIMIT: Limit = "copy"
ERROR = 1e-5
"""Of a share: scores are fp32."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Choice:
    """Describes the choice of `tokens` tokens among `experts`."""

    tokens: int
    experts: int
    routing: Routing
    corrected: bool = False
    target: Target | None = None

    def __str__(self) -> str:
        groups = f" in {self.routing.groups} groups" if self.routing.groups > 1 else ""
        return f"{self.tokens} tokens, {self.routing.used} of {self.experts} experts{groups}, {self.routing.scores}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says. They are fp32, whatever `dtype` is."""
        logits = random((self.tokens, self.experts), device, torch.float32)
        correction = random((self.experts,), device, torch.float32) / 8 if self.corrected else None

        def run(config: Config | None) -> tuple[Tensor, Tensor]:
            return route(logits, self.routing, correction, config=config)

        def check(config: Config | None) -> None:
            chosen, shares = run(config)
            expected, exact = reference(logits, self.routing, correction)
            same = (chosen == expected).all(1)  # scores may be closer than the two roundings of fp32
            assert same.float().mean() > 0.99, "other experts are chosen"
            assert ((shares - exact)[same].abs() <= ERROR * exact[same].abs()).all()

        def peer() -> tuple[Tensor, Tensor]:
            return reference(logits, self.routing, correction)

        read = logits.numel() * 4 + self.tokens * self.routing.used * 8
        return Case(run, check, bytes=read, peers={"operators": peer} if device.type != "meta" else {})


MIXTRAL, GPT_OSS = Routing(2, "softmax_of_used"), Routing(4, "softmax_of_used")
QWEN_MOE = Routing(8, normalized=True)
DEEPSEEK = Routing(8, "sigmoid", normalized=True, scale=2.5, groups=8, groups_used=4, best_two=True)

SHAPES: Mapping[Size, Sequence[Choice]] = {
    "full": [
        shape
        for tokens in (1, 32, 8192)
        for shape in (
            Choice(tokens, 128, QWEN_MOE),
            Choice(tokens, 8, MIXTRAL),
            Choice(tokens, 32, GPT_OSS),
            Choice(tokens, 256, DEEPSEEK, corrected=True),
        )
    ],
    "tiny": [Choice(3, 7, Routing(3)), Choice(2, 16, DEEPSEEK, corrected=True)],
    "compiled": [Choice(2, 160, Routing(6, scale=16.0, groups=8, groups_used=3)), Choice(2, 512, Routing(10))],
}
