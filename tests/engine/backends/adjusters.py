"""Every adjuster, of logits on the CPU; Triton's runs on a GPU if there is one, else in the interpreter."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from engine.backends.adjuster import Adjuster
from engine.backends.native.library import load
from engine.backends.native.sampling.adjuster import NativeAdjuster
from engine.backends.reference.sampling.adjuster import ReferenceAdjuster
from engine.backends.triton.sampling.adjuster import TritonAdjuster
from engine.constraints import Masks
from engine.model.batch import Sampled
from engine.plan import Work
from tests.engine.backends.device_sampler import DEVICE


class OnDevice:
    """See `engine.backends.adjuster.Adjuster`."""

    def __init__(self) -> None:
        self._own = TritonAdjuster()

    def adjust(self, logits: Tensor, works: Sequence[Work], before: Sampled | None, masks: Masks | None) -> Tensor:
        there = replace(before, tokens=before.tokens.to(DEVICE)) if before is not None else None
        return self._own.adjust(logits.to(DEVICE), works, there, masks).cpu()


ADJUSTERS: dict[str, Callable[[], Adjuster]] = {
    "torch": ReferenceAdjuster,
    "native": lambda: NativeAdjuster(load()),
    "triton": OnDevice,
}
