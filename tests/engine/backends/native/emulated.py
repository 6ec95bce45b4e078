"""The native operators of an ARM processor that QEMU emulates: every test of a library can run with them.

QEMU runs `emulated.c`, which loads the library. It has this process's memory at the same addresses: pages are
fetched from here when an operator touches the first. So a call passes pointers as to a library of this process.
"""

import atexit
import ctypes
import mmap
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import NativeError
from engine.backends.native.compiling.build import build, cache
from engine.backends.native.library import declare

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = ("qemu-aarch64", "-cpu", "max", "-B", "0", "-L", "/usr/aarch64-linux-gnu")
"""Emulates all instructions that QEMU knows, at a program's own addresses, with Debian's libraries for ARM."""
PROGRAMS = (COMPILER, EMULATOR[0])
FETCH, STORE, DONE = range(3)
REPORT_STRUCT = struct.Struct("=qqq")
"""Mirrors `struct report` in emulated.c."""
CALL_STRUCT = struct.Struct("=32sq10qd")
"""Mirrors `struct call` in emulated.c."""
PIECE_STRUCT = struct.Struct("=qq")
"""Mirrors `struct iovec` of process_vm_readv."""
RUN_BYTES = 16 * mmap.PAGESIZE
"""Mirrors emulated.c: maximum memory that is fetched at a time."""
MAX_WORDS = 10
"""Maximum number of a function's arguments, a `double` apart."""
GAP_BYTES = 1 << 32
"""Minimum distance of this process's memory and QEMU's: both grow."""
STARTS_TRIED = 20

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.read.argtypes, LIBC.read.restype = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_ssize_t
LIBC.process_vm_readv.argtypes = (ctypes.c_int, *(ctypes.c_char_p, ctypes.c_ulong) * 2, ctypes.c_ulong)
LIBC.process_vm_readv.restype = ctypes.c_ssize_t


def emulated(target: tuple[str, ...]) -> "EmulatedLibrary":
    """Compiles the operators for a target and starts an emulated process that calls them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", COMPILER)
        library = build(target)
    runner = cache() / f"emulated-{os.getpid()}"
    source = Path(__file__).with_name("emulated.c")
    subprocess.run([COMPILER, "-O2", "-fopenmp", "-no-pie", str(source), "-o", str(runner)], check=True)
    for _ in range(STARTS_TRIED):
        found = EmulatedLibrary(runner, library)
        if not found.overlaps():
            break
        found.close()
    runner.unlink()
    atexit.register(found.close)
    declare(found)
    return found


class EmulatedLibrary(ctypes.CDLL):
    """Has a library's functions as attributes, and calls them in the emulated process."""

    def __init__(self, runner: Path, library: Path) -> None:
        self._pages = mmap.mmap(-1, RUN_BYTES)
        self._to = PIECE_STRUCT.pack(ctypes.addressof(ctypes.c_char.from_buffer(self._pages)), RUN_BYTES)
        self._calling = threading.Lock()  # an engine's threads call one after the other
        self._line, far = socket.socketpair()
        # Without a limit of the stack, Linux maps libraries at low addresses: where this process has its own is free.
        command = ["sh", "-c", 'ulimit -s unlimited && exec "$@"', "sh", *EMULATOR, str(runner), str(library)]
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # the emulated threads share this machine's cores
        self._process = subprocess.Popen([*command, str(far.fileno())], pass_fds=[far.fileno()], env=environment)
        far.close()
        self._call("getpid", [], 0)  # it is up

    def overlaps(self) -> bool:
        """Whether QEMU's program and heap, whose addresses are random, lie where this process has memory."""
        mine, other = _mapped("self"), _mapped(str(self._process.pid))
        return any(a.start < b.stop + GAP_BYTES and b.start < a.stop + GAP_BYTES for a in mine for b in other)

    def close(self) -> None:
        self._line.close()
        self._process.wait()

    def __getattr__(self, name: str) -> Any:
        function = EmulatedFunction(self, name)
        setattr(self, name, function)
        return function

    def _call(self, name: str, words: Sequence[int], number: float) -> int:
        threads, unused = torch.get_num_threads(), [0] * (MAX_WORDS - len(words))
        with self._calling:
            self._line.sendall(CALL_STRUCT.pack(name.encode(), threads, *words, *unused, number))
            return self._answer(name)

    def _answer(self, name: str) -> int:
        """Passes memory on until the function returns."""
        line = self._line.fileno()
        while report := self._line.recv(REPORT_STRUCT.size, socket.MSG_WAITALL):
            kind, address, value = REPORT_STRUCT.unpack(report)
            if kind == DONE:
                return int(value)
            if kind == STORE:
                while value:
                    done = LIBC.read(line, address, value)
                    assert done > 0
                    address, value = address + done, value - done
                continue
            # It stops where memory without permissions begins.
            bytes_read = LIBC.process_vm_readv(os.getpid(), self._to, 1, PIECE_STRUCT.pack(address, value), 1, 0)
            if bytes_read <= 0:
                self.close()
                raise NativeError(f"{name} touches {address:#x}, which is no memory of this process")
            self._line.sendall(bytes_read.to_bytes(8, "little") + self._pages[:bytes_read])
        raise NativeError(f"{name} ended the emulated process: {self._process.wait()}")


class EmulatedFunction:
    """A function of the library: converts arguments as ctypes does."""

    def __init__(self, library: EmulatedLibrary, name: str) -> None:
        self._library, self._name = library, name
        self.argtypes: tuple[type, ...] = ()
        self.restype: type | None = ctypes.c_int

    def __call__(self, *arguments: Any) -> int | None:
        given = list(zip(self.argtypes, arguments, strict=True))
        number = next((value for kind, value in given if kind is ctypes.c_double), 0.0)
        words = [word_of(value) for kind, value in given if kind is not ctypes.c_double]
        result = self._library._call(self._name, words, number)
        return None if self.restype is None else result


def word_of(value: Any) -> int:
    """Returns a whole number, or the address of what would be passed by one."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    if isinstance(value, bytes):
        value = ctypes.c_char_p(value)
    elif isinstance(value, ctypes.Structure):
        return ctypes.addressof(value)
    return ctypes.cast(value, ctypes.c_void_p).value or 0


def _mapped(process: str) -> list[range]:
    """Returns the addresses of a process's programs, libraries and heaps; stacks and what Linux adds are apart."""
    found = []
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if "[stack]" not in line and "[v" not in line:
            found.append(range(begin, end))
    return found
