"""Launches a kernel with random arguments directly and by Triton's launcher, and fails where the launches differ.

    python -m tests.kernels.compare_launches [--draws 300]

Needs no GPU, and runs in a process without Triton's interpreter. Prints how many launches were direct.
"""

import argparse
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from benchmarks.simulated.compile_only import CompileOnly, compiling
from kernels.launching import launched_directly, prepared

DTYPES = (torch.float32, torch.bfloat16)
NUMBERS = (1, 2, 16, 17, 4096)
EXTREME_NUMBERS = (0, -1, -16, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**40, 2**63)
EXTREME_SHARE, REPEATED_SHARE, PREPARED_SHARE = 0.1, 0.75, 0.5
FLAGS = (True, False)
FACTORS = (0.0, 1.0, 1.5, 1, 16)
_launches: dict[tuple[Any, ...], Callable[..., None]] = {}
Launch = tuple[Any, tuple[Any, ...]]
"""What launches a binary, which belongs to that binary alone, and its arguments."""


@launched_directly
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["there", "step"])
def _kernel(
    here: tl.tensor,
    there: tl.tensor,
    number: tl.tensor,
    step: tl.tensor,
    count: tl.tensor,
    flag: tl.tensor,
    factor: tl.tensor,
    WIDTH: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    at = tl.arange(0, WIDTH)
    if ADD:
        tl.store(here + at, tl.load(there + at).to(here.dtype.element_ty))


class Recording:
    """The launches that reach the driver."""

    def __init__(self, driver: CompileOnly) -> None:
        self.launches: list[Launch] = []
        make = driver.launcher_cls

        def launcher_cls(source: Any, metadata: Any) -> Any:
            make(source, metadata)

            def launch(*arguments: object) -> None:
                self.launches.append((launch, arguments))

            return launch

        driver.launcher_cls = launcher_cls  # type: ignore[method-assign]


def drawn(random_: random.Random) -> tuple[list[Any], dict[str, Any], tuple[int, ...]]:
    """Draws positional arguments, named arguments, and a grid."""
    memory = torch.empty(4096, dtype=torch.uint8)

    def tensor() -> Tensor:
        dtype = random_.choice(DTYPES)
        begin = random_.choice((0, 8, 16, 32))
        return memory[begin : begin + 2048].view(dtype)

    def number() -> int:
        return random_.choice(EXTREME_NUMBERS if random_.random() < EXTREME_SHARE else NUMBERS)

    values = [tensor(), tensor(), number(), number(), number(), random_.choice(FLAGS), random_.choice(FACTORS)]
    names = [parameter.name for parameter in _kernel.kernel.params]
    positional = random_.choice((0, 2, len(values)))
    options = {"WIDTH": 16, "ADD": random_.choice(FLAGS)} | random_.choice(({"num_warps": 1}, {"num_warps": 2}))
    grid = tuple(random_.choice((1, 2, 7)) for _ in range(random_.choice((1, 2, 3))))
    return values[:positional], dict(zip(names[positional:], values[positional:], strict=False)) | options, grid


def compare(driver: CompileOnly, draws: int) -> int:
    """Returns how many launches by-passed Triton's launcher."""
    recording, random_, direct = Recording(driver), random.Random(0), 0
    seen: list[tuple[list[Any], dict[str, Any], tuple[int, ...]]] = []
    for _ in range(draws):
        args, named, grid = random_.choice(seen) if seen and random_.random() < REPEATED_SHARE else drawn(random_)
        seen.append((args, named, grid))
        launch = (
            _prepared(args, named, grid)
            if random_.random() < PREPARED_SHARE
            else partial(_kernel[grid], *args, **named)
        )
        driver.sm = random_.choice((80, 90, 90))
        _, error = driver.launch(launch)
        _, expected_error = driver.launch(lambda: _kernel.kernel[grid](*args, **named))  # noqa: B023 - the same
        assert error == expected_error, f"{error!r} differs from {expected_error!r}"
        if error:
            continue
        (launched, found), (expected_launched, expected) = recording.launches[-2:]
        assert launched is expected_launched, f"another binary for {args}, {named}"
        assert found[:6] == expected[:6], "another grid, stream, handle or metadata"
        assert len(found) == len(expected)
        assert all(one is other for one, other in zip(found[9:], expected[9:], strict=True)), "other arguments"
        direct += found[7] is None
    return direct


def _prepared(args: list[Any], named: dict[str, Any], grid: tuple[int, ...]) -> partial[None]:
    """Prepares a launch once for each choice of compile-time arguments and options."""
    names = [parameter.name for parameter in _kernel.kernel.params if not parameter.is_constexpr]
    values = dict(zip(names, args, strict=False)) | named
    runtime = [values.pop(name) for name in names]
    key = tuple(values.items())
    if key not in _launches:
        _launches[key] = prepared(_kernel, **values)
    return partial(_launches[key], grid, *runtime)


def watched(driver: CompileOnly) -> list[int]:
    """Counts the direct launches among two of one kind: unwatched, with a hook, and with the hook removed."""
    recording, counts = Recording(driver), []

    def hook(metadata: object) -> None: ...

    def twice() -> None:
        x = torch.empty(16)
        for _ in range(2):
            _kernel[(1,)](x, x, 2, 2, 2, True, 1.5, WIDTH=16, ADD=True, num_warps=4)

    for change in (lambda hook: None, knobs.runtime.launch_enter_hook.add, knobs.runtime.launch_enter_hook.remove):
        change(hook)
        recording.launches.clear()
        _, error = driver.launch(twice)
        assert not error, error
        counts.append(sum(arguments[7] is None for _, arguments in recording.launches))
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.kernels.compare_launches", description=__doc__)
    parser.add_argument("--draws", type=int, default=300)
    draws = parser.parse_args().draws
    with compiling() as driver:
        print(f"triton {triton.__version__}: {compare(driver, draws)} of {draws} launches were direct")
        print(f"direct launches of two without a hook, with a hook, and again without: {watched(driver)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
