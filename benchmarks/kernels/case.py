"""One row of the kernels' benchmark: a kernel on inputs of one shape, its reference, its work and PyTorch's peers.

A kernel is described by a `Kernel`: a function that makes a `Case` of a row's arguments, and the arguments of all rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.tuning import Config

Size = Literal["full", "tiny", "compiled"]
"""`full` is measured on a GPU, `tiny` runs in Triton's interpreter; `compiled` has further variants that models use."""
Limit = Literal["copy", "multiply"]
Arguments = Mapping[str, Any]
Work = Callable[[], object]

MAX_ROUNDINGS = 4
"""Bound of a result's relative error, in half units in the last place. The format is rounded to where an operator hands
over to the next (attention's weights, normed values before their weight, the output), three times at most; all other
arithmetic is fp32."""


@dataclass(frozen=True)
class Target:
    """Wanted share of the limit; 0: no slower than the best peer."""

    share: float = 0.0

    def __str__(self) -> str:
        return f">= {self.share:.0%}" if self.share else ">= best peer"


@dataclass(frozen=True)
class Case:
    """A row's kernel with its inputs on the device."""

    run: Callable[[Config | None], object]
    """Launches the kernel with a candidate config, or with its own choice."""
    check: Callable[[Config | None], None]
    """Raises AssertionError where the kernel's result differs from its reference."""
    bytes: int
    """Least number of bytes to read and write."""
    operations: int = 0
    peers: Mapping[str, Work] = field(default_factory=dict)
    """The same work by PyTorch."""


@dataclass(frozen=True)
class Inputs:
    """Makes random inputs in a row's format on its device. Tensors on `meta` have no memory and are not compared."""

    device: torch.device
    dtype: torch.dtype

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device).normal_()

    def words(self, *shape: int) -> Tensor:
        whole = torch.iinfo(torch.int32)
        return torch.randint(whole.min, whole.max, shape, dtype=torch.int32, device=self.device)

    def up_to(self, end: int, *shape: int) -> Tensor:
        return torch.randint(end, shape, device=self.device)

    @property
    def real(self) -> bool:
        return self.device.type != "meta"


@dataclass(frozen=True)
class Shape:
    """A row. Its text, the row's name, lists its arguments."""

    make: Callable[..., Case]
    arguments: Arguments
    target: Target | None = None

    def __str__(self) -> str:
        named = ((name.replace("_", " "), value) for name, value in self.arguments.items() if value is not False)
        return ", ".join(name if value is True else f"{name} {value}" for name, value in named)

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        return self.make(Inputs(device, dtype), **self.arguments)


@dataclass(frozen=True)
class Kernel:
    """Rows of one kernel: `make` takes `Inputs` and a row's arguments."""

    limit: Limit
    """Bound of the kernel: memory bandwidth or multiplications."""
    candidates: Sequence[Config]
    make: Callable[..., Case]
    full: Sequence[Arguments]
    tiny: Sequence[Arguments]
    compiled: Sequence[Arguments] = ()
    launched: Callable[..., bool] = lambda **_: True
    """Whether a model launches a row, given its arguments, on the assumed device."""

    def shape(self, *, target: Target | None = None, **arguments: Any) -> Shape:
        return Shape(self.make, arguments, target)

    def shapes(self, size: Size) -> list[Shape]:
        listed: Mapping[Size, Sequence[Arguments]] = {"full": self.full, "tiny": self.tiny, "compiled": self.compiled}
        return sorted((self.shape(**each) for each in listed[size]), key=lambda shape: shape.target is None)


def compared(
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    *given: Any,
    changed: int = 0,
    same: Callable[[Any, Any], None] | None = None,
    **work: Any,
) -> Case:
    """Makes the case of a kernel and its reference; both take `given`, and change the first `changed` of these tensors.

    The check works on copies of the changed tensors, and compares them and the results by `same`, or `close`.
    """

    def check(config: Config | None) -> None:
        ours, theirs = ([each.clone() for each in given[:changed]] for _ in range(2))
        found, expected = kernel(*ours, *given[changed:], config=config), reference(*theirs, *given[changed:])
        for one, other in [*zip(ours, theirs, strict=True), *([] if found is None else [(found, expected)])]:
            (same or close)(one, other)

    def run(config: Config | None) -> Any:
        found = kernel(*given, config=config)
        return None if changed else found  # a changed tensor's values differ from run to run

    return Case(run, check, **work)


def close(found: Tensor, expected: Tensor) -> None:
    """Raises AssertionError unless |found - expected| <= MAX_ROUNDINGS u |expected|, u half the format's epsilon."""
    assert found.shape == expected.shape, f"shape {list(found.shape)}, expected {list(expected.shape)}"
    exact = expected.double()
    error = float((found.double() - exact).norm() / exact.norm())
    bound = MAX_ROUNDINGS * torch.finfo(found.dtype).eps / 2
    assert error <= bound, f"relative error {error:.1e}, bound {bound:.1e}"  # NaN is not below the bound


def equal(found: Tensor, expected: Tensor) -> None:
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), "other values"
