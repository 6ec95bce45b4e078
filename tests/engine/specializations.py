"""Tells which specializations of the kernels a device would have compiled, while they run in Triton's interpreter.

Triton compiles a kernel once for each kind of arguments: formats, constants, whether a number is 1 or divisible by 16,
whether an address is. The interpreter compiles nothing, so the same arguments are given to Triton's own code too, which
decides what is the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

HOPPER = GPUTarget("cuda", 90, 32)

Specialization = tuple[str, str]
"""A kernel's name, and what it is compiled for."""


@contextmanager
def specializations(*, run: bool) -> Iterator[set[Specialization]]:
    """Collects what is launched inside; without `run` launches do nothing else."""
    found: set[Specialization] = set()
    own = InterpretedFunction.run

    def launched(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        _, kinds, options = _binder(self)(*args, **kwargs)
        found.add((self.fn.__qualname__, f"{kinds} {sorted(options.items())}"))
        if run:
            own(self, *args, grid=grid, warmup=warmup, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", launched)
        yield found


@cache
def _binder(kernel: Any) -> Any:
    """Makes what sorts a kernel's arguments, as `JITFunction.create_binder` does for a device that is there."""
    function = JITFunction(kernel.fn, **kernel.kwargs)
    return create_function_from_signature(function.signature, function.params, make_backend(HOPPER))
