"""Launches kernels on the CPU: Triton compiles them for a GPU, and the emulator runs their PTX on the CPU's tensors."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton import knobs
from triton.runtime import driver
from triton.runtime.cache import get_cache_manager

from benchmarks.simulated.compile_only import CompileOnly
from tests.kernels.emulated.emulator import run
from tests.kernels.emulated.memory import GlobalMemory
from tests.kernels.emulated.ptx import Program, parse
from tests.kernels.emulated.warp import Launch

ATOMICS = {("atom", "global"), ("red", "global")}


class EmulatingDriver(CompileOnly):
    """Runs what is launched. `change` may change a kernel's PTX before: tests take a barrier away, for example."""

    def __init__(self) -> None:
        super().__init__()
        self.reached_by_address: list[torch.Tensor] = []
        """Tensors that kernels reach by addresses in other tensors."""

    def change(self, ptx: str) -> str:
        return ptx

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        super().launcher_cls(source, metadata)
        path = get_cache_manager(metadata.hash).get_file(f"{metadata.name}.ptx")
        assert path is not None
        program = parse(self.change(Path(path).read_text()))
        kinds = list(source.signature.values())
        uses_atomics = any(each.opcode[:2] in ATOMICS for each in program.instructions)

        def launch(x: int, y: int, z: int, stream: int, function: int, packed: Any, data: Any, *more: Any) -> None:
            given = [each for kind, each in zip(kinds, more[2:], strict=True) if kind != "constexpr"]
            tensors = [each for each in given if isinstance(each, torch.Tensor)]
            memory = GlobalMemory([*tensors, *self.reached_by_address], synchronized=uses_atomics)
            arguments = _arguments(program, given)
            run(Launch(program, arguments, (x, y, z), metadata.shared, memory))
            self.launched += 1

        return launch


def _arguments(program: Program, given: list[Any]) -> dict[str, int]:
    """Returns the bits of a launch's arguments by parameter; Triton's own, scratch memory, are 0."""
    words = [_word(each) for each in given]
    words += [0] * (len(program.parameters) - len(words))
    pairs = zip(program.parameters, words, strict=True)
    return {name: word & ((1 << width) - 1) for (name, width), word in pairs}


def _word(given: Any) -> int:
    if isinstance(given, torch.Tensor):
        return given.data_ptr()
    return int(np.float32(given).view(np.uint32)) if isinstance(given, float) else int(given)


@contextmanager
def emulating(sm: int) -> Iterator[EmulatingDriver]:
    """Makes the emulator Triton's driver in this process, for a compute capability such as 80."""
    assert not knobs.runtime.interpret, "with TRITON_INTERPRET set, nothing is compiled"
    own = EmulatingDriver()
    own.sm = sm
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        knobs.nvidia.dump_ptxas_log = True
        driver.set_active(own)
        yield own
