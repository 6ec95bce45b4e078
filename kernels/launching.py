"""Launches compiled kernels without Triton's launcher, which takes 12 to 15 µs of Python; a direct launch takes 3 to 4.

Triton's launcher describes every argument of every launch, prints the options, and looks up the binary by that text. A
direct launch looks it up by the *kind* of the launch: the device, the compile-time arguments, and for each other
argument its type, whether it is 1, and whether it, or its address, is a multiple of 16. Triton's launcher makes the
first launch of each kind and so picks its binary; later launches call that binary as Triton's launcher does. Kinds are
never coarser than Triton's own, so no launch reaches a binary that was compiled for other arguments. A wrapper that
every layer calls prepares its launch: compile-time arguments are then sorted once for each shape, not at each launch.

Triton's launcher makes every launch where the version of Triton is unknown, the device is not NVIDIA's, hooks watch
launches, kernels are compiled for debugging, or an argument is of a type that kinds do not cover. The interpreter is
never by-passed.
"""

from collections.abc import Callable
from functools import partial
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
_Grid = tuple[int, ...]
_Binary = tuple[Any, Any, Any]
"""A compiled kernel's launch function, its handle, and its packed metadata."""
Launch = Callable[..., None]
"""Launches a kernel: takes the grid, then the arguments that are not known when a kernel is compiled, in order."""


def launched_directly(kernel: Any) -> Any:
    """Decorates a kernel that `triton.jit` has made: `kernel[grid](…)` takes the same arguments."""
    known = triton.__version__.startswith(KNOWN_VERSIONS)
    return DirectLauncher(kernel) if known and isinstance(kernel, JITFunction) else kernel


def prepared(kernel: Any, /, **constants: Any) -> Launch:
    """Returns the launch of a kernel with these compile-time arguments and options."""
    if isinstance(kernel, DirectLauncher):
        return kernel.prepared(constants)

    def launch(grid: _Grid, *args: Any) -> None:
        kernel[grid](*args, **constants)

    return launch


class DirectLauncher:
    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._layouts: dict[_Values, _Layout] = {}

    def __getitem__(self, grid: _Grid) -> Launch:
        return partial(self.launch, grid)

    def launch(self, grid: _Grid, /, *args: Any, **named: Any) -> None:
        names = (len(args), *named)
        layout = self._layouts.get(names)
        if layout is None:
            layout = self._layouts[names] = _Layout(self.kernel.params, len(args), tuple(named))
        values = (*args, *named.values())
        constants = layout.constants(values)
        launch = layout.launches.get(constants)
        if launch is None:
            launch = self.prepared(dict(zip(layout.constant_names, constants, strict=True)))
            layout.launches[constants] = launch
        launch(grid, *layout.runtime(values))

    def prepared(self, constants: dict[str, Any]) -> "PreparedLaunch":
        return PreparedLaunch(self.kernel, constants)


class PreparedLaunch:
    """Launches a kernel with given compile-time arguments and options."""

    def __init__(self, kernel: Any, constants: dict[str, Any]) -> None:
        runtime = [each for each in kernel.params if not each.is_constexpr]
        behind = kernel.params[len(runtime) :]
        assert all(each.is_constexpr for each in behind), "compile-time parameters stand behind all others"
        self._kernel = kernel
        self._constants = constants
        self._behind = tuple([constants[each.name] for each in behind])
        self._masks = [
            0 if each.do_not_specialize or each.do_not_specialize_on_alignment else ALIGNMENT_MASK for each in runtime
        ]
        self._binaries: dict[_Values, _Binary] = {}  # by kind

    def __call__(self, grid: _Grid, /, *args: Any) -> None:
        active = driver.active
        device = active.get_current_device()
        # A pointer's kind is its format, in a tuple where the address is not aligned.
        kind = (
            device,
            *[
                (value.dtype if not value.data_ptr() & mask else (value.dtype,))
                if (kind := type(value)) is Tensor
                else (2 if value == 1 else not value & mask)
                if kind is int and -1 <= value >> MAX_INT32_BITS <= 0
                else kind
                if kind is float or kind is bool
                else _UNCOVERED
                for value, mask in zip(args, self._masks, strict=True)
            ],
        )
        binary = self._binaries.get(kind)
        if binary is None or _are_watched():
            compiled = self._kernel[grid](*args, **self._constants)
            if _UNCOVERED not in kind and _runs_on_nvidia(compiled) and not _is_debugged(self._kernel):
                self._binaries[kind] = compiled.run, compiled.function, compiled.packed_metadata
            return
        run, function, metadata = binary
        x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
        stream = active.get_current_stream(device)
        run(x, y, z, stream, function, metadata, None, None, None, *args, *self._behind)


class _Layout:
    """Places of the kernel's parameters among the values of launches that name the same arguments."""

    def __init__(self, parameters: list[Any], positional: int, named: tuple[str, ...]) -> None:
        given = [parameter.name for parameter in parameters[:positional]] + list(named)
        runtime = [given.index(each.name) for each in parameters if not each.is_constexpr]
        constants = [index for index in range(len(given)) if index not in runtime]
        self.launches: dict[_Values, PreparedLaunch] = {}  # by the compile-time arguments and options
        self.constant_names = [given[index] for index in constants]
        self.runtime = _items(runtime)
        self.constants = _items(constants)


def _items(places: list[int]) -> Callable[[_Values], _Values]:
    return itemgetter(*places) if len(places) > 1 else lambda values: tuple([values[place] for place in places])


def _are_watched() -> bool:
    """Returns whether hooks, such as a profiler's, take part in launches."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", True) or getattr(leave, "calls", True))


def _is_debugged(kernel: Any) -> bool:
    """Returns whether debugging checks take part in compilations or launches."""
    runtime = knobs.runtime
    return bool(runtime.debug or runtime.add_stages_inspection_hook is not None or kernel.pre_run_hooks)


def _runs_on_nvidia(compiled: Any) -> bool:
    return isinstance(compiled, CompiledKernel) and compiled.metadata.target.backend == "cuda"
