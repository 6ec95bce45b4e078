"""The Triton sampler, where its kernels can run: on a GPU if there is one, else in the interpreter, on the CPU."""

from collections.abc import Sequence

from torch import Tensor

from engine.backends.sampler import Draw
from engine.backends.triton.sampling.sampler import TritonSampler
from launcher.devices.gpus import visible_gpus

DEVICE = "cuda" if visible_gpus() else "cpu"
INTERPRETED = DEVICE == "cpu"
"""A filtered draw then takes a tenth of a second: what needs thousands of them is left to GPUs."""


class DeviceSampler:
    """See `engine.backends.sampler.Sampler`; of logits on the CPU."""

    def sample(self, logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
        tokens, finite = TritonSampler().sample(logits.to(DEVICE), draws)
        return tokens.cpu(), finite.cpu()
