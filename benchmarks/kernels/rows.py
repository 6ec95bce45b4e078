"""All rows of the table, by the kernel's name."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from benchmarks.kernels import attention, experts, layers, quantized, sampling
from benchmarks.kernels.case import Kernel, Limit, Shape, Size

KERNELS: dict[str, Kernel] = {
    **attention.KERNELS,
    **layers.KERNELS,
    **experts.KERNELS,
    **quantized.KERNELS,
    **sampling.KERNELS,
}


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
