"""Defines a row of the kernels' benchmark: a kernel on inputs of one shape, its work, and who else can do it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from kernels.tuning import Config

Size = Literal["full", "tiny", "compiled"]
"""`full` is measured on a GPU, `tiny` is interpreted; `compiled` has what else a model may make of a kernel."""
Limit = Literal["copy", "multiply"]

ROUNDINGS = 4
"""Half units in the last place that a result may be away from the reference, in the norm: the format is rounded to
where an operator hands over to the next (attention's weights, normed values before their weight, the output), three
times at most, and everything else is fp32."""


class Target(NamedTuple):
    """Says what is wanted of a row: a share of the limit or, where `share` is 0, to be no slower than the best peer."""

    share: float = 0.0

    def __str__(self) -> str:
        return f">= {self.share:.0%}" if self.share else ">= best peer"


@dataclass(frozen=True)
class Case:
    """Holds one row's work. Inputs are on the device already."""

    run: Callable[[Config | None], object]
    """The kernel, with a config of its candidates or its own choice."""
    check: Callable[[Config | None], None]
    """Raises AssertionError where the kernel's result is not that of its reference."""
    bytes: int
    """The least that has to be read and written."""
    operations: int = 0
    peers: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    """The same work by PyTorch."""


class Shape(Protocol):
    """Describes the shape of one row; its text is the row's name."""

    @property
    def target(self) -> Target | None:
        """Returns what is wanted of the row, if anything."""
        ...

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes fresh random inputs on a device. On `meta` there are none, and only `run` may be called."""
        ...


class Rows(Protocol):
    """Says what a module of this package, named as its kernel, offers."""

    @property
    def LIMIT(self) -> Limit:
        """Says what the kernel is bound by."""
        ...

    @property
    def SHAPES(self) -> Mapping[Size, Sequence[Shape]]:
        """Lists its rows."""
        ...

    @property
    def CANDIDATES(self) -> Sequence[Config]:
        """Returns the kernel's own candidates."""
        ...


def close(found: Tensor, expected: Tensor) -> None:
    """Raises AssertionError unless |found - expected| <= ROUNDINGS u |expected|, u being half the format's epsilon."""
    assert found.shape == expected.shape, f"shape {list(found.shape)}, expected {list(expected.shape)}"
    exact = expected.double()
    error = float((found.double() - exact).norm() / exact.norm())
    bound = ROUNDINGS * torch.finfo(found.dtype).eps / 2
    assert error <= bound, f"relative error {error:.1e}, bound {bound:.1e}"  # NaN is not below it


def random(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Draws standard normal numbers: zeros hide errors, and are faster to multiply."""
    return torch.empty(tuple(shape), dtype=dtype, device=device).normal_()
