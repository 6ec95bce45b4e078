"""Drives Triton without a device: launched kernels are compiled for a target, measured by its assembler, and not run.

So kernels are compiled as their own wrappers launch them. Tensors may be on `meta`: only their formats, strides and
alignment count. Triton's caches are the process' and a directory of its own.
"""

import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kernels.device import assumed

MAX_SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""Bytes of shared memory that a block can have, by compute capability (CUDA C++ Programming Guide, its table of
technical specifications; compute capability 10.0 and 12.0 as of its version 13)."""
WARP, MAX_BLOCK_THREADS, PROCESSORS = 32, 1024, 132
USED_REGISTERS = re.compile(r"Used (\d+) registers")
SPILLED_BYTES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Compiled:
    """What one specialization of a kernel takes, by `ptxas -v`: bytes, registers of a thread; and its machine code."""

    name: str
    sm: int
    warps: int
    registers: int
    spilled: int
    stack: int
    shared: int
    code: bytes = field(default=b"", repr=False)  # empty if it does not fit

    @property
    def fits(self) -> bool:
        return self.shared <= MAX_SHARED_BYTES[self.sm]


class CompileOnly:
    """The part of a driver that Triton needs between a launch and the device."""

    def __init__(self) -> None:
        self.sm = 90  # compute capability, and device id: kernels of different targets stay apart
        self.utils = self
        self._compiled: list[Compiled] = []
        self._said = io.StringIO()
        self._used: set[int] = set()  # places in `_compiled`
        self.launched = 0  # kernels so far

    def launch(self, work: Callable[[], object]) -> tuple[list[Compiled], str]:
        """Returns the kernels that `work` compiles for the first time, and an error message, or an empty one.

        Kernels that take more shared memory than the device has are in the list, with an error.
        """
        before, error = len(self._compiled), ""
        self._used.clear()
        with redirect_stdout(self._said), assumed(*divmod(self.sm, 10)):
            try:
                work()
            except Exception as failed:  # Triton's own classes among them
                error = f"{type(failed).__name__}: {failed}"
        return self._compiled[before:], error

    @property
    def used(self) -> list[Compiled]:
        """Returns what the last launch ran, whether it was compiled then or before."""
        return [self._compiled[place] for place in sorted(self._used)]

    def get_current_device(self) -> int:
        return self.sm

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self.sm, WARP)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": MAX_SHARED_BYTES[device], "multiprocessor_count": PROCESSORS, "warpSize": WARP}

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        place = len(self._compiled)
        self._compiled.append(Compiled(metadata.name, self.sm, metadata.num_warps, *self._report(), metadata.shared))

        def nothing(*arguments: object) -> None:
            self.launched += 1
            self._used.add(place)

        return nothing

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        found = self._compiled[-1]
        assert found.name == name
        self._compiled[-1] = replace(found, code=binary)
        return 1, 1, found.registers, found.spilled, MAX_BLOCK_THREADS

    def _report(self) -> tuple[int, int, int]:
        log = self._said.getvalue()
        self._said.truncate(self._said.seek(0))
        used, spilled = USED_REGISTERS.findall(log), SPILLED_BYTES.findall(log)
        assert used and spilled, f"the assembler's report has changed: {log!r}"
        stack, stores, loads = (max(int(each[part]) for each in spilled) for part in range(3))
        return max(map(int, used)), max(stores, loads), stack


@contextmanager
def compiling() -> Iterator[CompileOnly]:
    assert not knobs.runtime.interpret, "with TRITON_INTERPRET set, nothing is compiled"
    own = CompileOnly()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        knobs.nvidia.dump_ptxas_log = True
        driver.set_active(own)
        yield own


VERSION: str = triton.__version__
