"""Launches compiled kernels without Triton's launcher, which takes 12 to 15 µs of Python; a direct launch takes 3 to 4.

Triton's launcher describes every argument of every launch, prints the options, and looks up the binary by that text. A
direct launch looks it up by the *kind* of the launch: the device, the compile-time arguments, and for each other
argument its type, whether it is 1, and whether it, or its address, is a multiple of 16. Triton's launcher makes the
first launch of each kind and so picks its binary; later launches call that binary as Triton's launcher does. Kinds are
never coarser than Triton's own, so no launch reaches a binary that was compiled for other arguments.

Triton's launcher makes every launch where the version of Triton is unknown, the device is not NVIDIA's, hooks watch
launches, or an argument is of a type that kinds do not cover. The interpreter is never by-passed.
"""

from operator import itemgetter
from typing import Any

import triton
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import JITFunction, driver

KNOWN_VERSIONS = ("3.6.", "3.7.", "3.8.", "3.9.")
"""Versions of Triton whose launcher direct launches were compared with."""
ALIGNMENT_MASK = 15
"""Triton compiles other binaries for numbers and addresses that are multiples of 16."""
MAX_INT32_BITS = 31
_UNCOVERED = object()
"""Kind of an argument that only Triton's launcher can sort."""
_Values = tuple[Any, ...]
_Binary = tuple[Any, Any, Any]
"""A compiled kernel's launch function, its handle, and its packed metadata."""


def launched_directly(kernel: Any) -> Any:
    """Decorates a kernel that `triton.jit` has made: `kernel[grid](…)` takes the same arguments."""
    known = triton.__version__.startswith(KNOWN_VERSIONS)
    return DirectLauncher(kernel) if known and isinstance(kernel, JITFunction) else kernel


class DirectLauncher:
    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._layouts: dict[_Values, _Layout] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> "_Launch":
        return _Launch(self, grid)

    def launch(self, grid: tuple[int, ...], args: _Values, named: dict[str, Any]) -> None:
        names = (len(args), *named)
        layout = self._layouts.get(names)
        if layout is None:
            layout = self._layouts[names] = _Layout(self.kernel.params, len(args), tuple(named))
        active = driver.active
        device = active.get_current_device()
        values = (*args, *named.values())
        kind = layout.kind(device, values)
        binary = layout.binaries.get(kind)
        if binary is None or _are_watched(self.kernel):
            compiled = self.kernel[grid](*args, **named)
            if _UNCOVERED not in kind and _runs_on_nvidia(compiled):
                layout.binaries[kind] = compiled.run, compiled.function, compiled.packed_metadata
            return
        run, function, metadata = binary
        x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
        stream = active.get_current_stream(device)
        run(x, y, z, stream, function, metadata, None, None, None, *layout.bound(values))


class _Launch:
    __slots__ = ("_grid", "_launcher")

    def __init__(self, launcher: DirectLauncher, grid: tuple[int, ...]) -> None:
        self._launcher = launcher
        self._grid = grid

    def __call__(self, *args: Any, **named: Any) -> None:
        self._launcher.launch(self._grid, args, named)


class _Layout:
    """Places of the kernel's parameters among the values of launches that name the same arguments."""

    def __init__(self, parameters: list[Any], positional: int, named: tuple[str, ...]) -> None:
        given = [parameter.name for parameter in parameters[:positional]] + list(named)
        runtime = {given.index(each.name): each for each in parameters if not each.is_constexpr}
        constants = [index for index in range(len(given)) if index not in runtime]
        self.binaries: dict[_Values, _Binary] = {}  # by kind
        self.bound = itemgetter(*(given.index(parameter.name) for parameter in parameters))
        self._runtime = itemgetter(*runtime)
        self._constants = itemgetter(slice(0, 0)) if not constants else itemgetter(*constants)
        self._masks = [
            0 if each.do_not_specialize or each.do_not_specialize_on_alignment else ALIGNMENT_MASK
            for each in runtime.values()
        ]

    def kind(self, device: int, values: _Values) -> _Values:
        """Sorts a launch. A pointer's kind is its format, in a tuple where the address is not aligned."""
        return (
            device,
            self._constants(values),
            *[
                (value.dtype if not value.data_ptr() & mask else (value.dtype,))
                if (kind := type(value)) is Tensor
                else (2 if value == 1 else not value & mask)
                if kind is int and -1 <= value >> MAX_INT32_BITS <= 0
                else kind
                if kind is float or kind is bool
                else _UNCOVERED
                for value, mask in zip(self._runtime(values), self._masks, strict=True)
            ],
        )


def _are_watched(kernel: Any) -> bool:
    """Returns whether hooks of a profiler, or debugging checks, take part in launches."""
    runtime = knobs.runtime
    return bool(
        getattr(runtime.launch_enter_hook, "calls", True)
        or getattr(runtime.launch_exit_hook, "calls", True)
        or runtime.debug
        or runtime.add_stages_inspection_hook is not None
        or kernel.pre_run_hooks
    )


def _runs_on_nvidia(compiled: Any) -> bool:
    return isinstance(compiled, CompiledKernel) and compiled.metadata.target.backend == "cuda"
