"""Compiles the native operators for this processor, once: later starts find the library in the cache.

The file's name is a hash of all that decides its contents: sources, compiler, flags, processor. It is written beside
its place and renamed, so workers that start at the same time do each other no harm. One of them compiles, and the
others wait for it.
"""

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import NativeError
from engine.backends.native.compiling.levels import LEVELS, runnable
from infra.config.operators import OPERATORS_VARIABLE

COMPILER_NAMES = ("cc", "gcc", "clang")
# -ffp-contract=off: the source says where a product and a sum are rounded once; nothing may reorder a sum.
COMPILER_FLAGS = ("-std=gnu11", "-O3", "-fopenmp", "-fPIC", "-fvisibility=hidden", "-Wno-psabi", "-ffp-contract=off")
NATIVE_TARGET = ("-march=native",)
WITHOUT_COMPILER = (
    f"install one, or run `./baton operators --build --out DIR` on another host and set {OPERATORS_VARIABLE} to DIR"
)
TARGET_VARIABLE = "BATON_NATIVE_TARGET"
"""Environment variable with other target options for the compiler, such as `-march=x86-64-v3` for AVX2."""
LINKED_LIBRARIES = ("-lm",)
SLOWEST_SOURCES = ("attention.c", "linear.c", "codec.c")
"""Sources that compile first, so that a compile on few cores does not end with them."""
PRIVATE_MODE = 0o700
COMPILE_TIMEOUT_S = 60.0
"""Timeout of one compiler run."""
MAX_TURN_WAIT_S = 120.0
"""Seconds that a process waits for others that compile; then it compiles beside them."""
TURN_POLL_S = 0.05


def build(target: Sequence[str] = ()) -> Path:
    """Returns the library's path, compiled first where the cache does not have it.

    `target` names the processor's instructions; without it `chosen_target` does. Raises `NativeError`, with the
    compiler's first error, where there is no compiler, it fails, or the cache cannot be written.
    """
    command, target = compiler(), target or chosen_target()
    key = hashlib.sha256()
    for part in (version(command), shlex.join(command), source_digest(target), processor()):
        key.update(part.encode() + b"\0")
    library = cache() / f"operators-{key.hexdigest()[:32]}.so"
    if not library.exists():
        with _turn(library.parent):
            if not library.exists():
                compile_library(command, target, library, PRIVATE_MODE)
    return library


@contextmanager
def _turn(directory: Path) -> Iterator[None]:
    """Lets one process at a time compile into a directory.

    Raises `NativeError` if the directory cannot be made or read.
    """
    with _writing(directory):
        directory.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + MAX_TURN_WAIT_S
        while not _locked(descriptor) and time.monotonic() < deadline:
            time.sleep(TURN_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Returns whether there is nothing to wait for: the lock is this process's, or the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def source_digest(target: Sequence[str]) -> str:
    """Returns 32 hexadecimal digits of the sources and the compiler's options, which identify a library's results."""
    digest = hashlib.sha256(shlex.join((*COMPILER_FLAGS, *target, *LINKED_LIBRARIES)).encode() + b"\0")
    for path in _sources(".c", ".h"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _sources(*suffixes: str) -> list[Path]:
    return sorted(path for path in (Path(__file__).parent.parent / "csrc").iterdir() if path.suffix in suffixes)


def chosen_target() -> tuple[str, ...]:
    """Returns the options in `TARGET_VARIABLE`, or options for this processor's instructions."""
    given = tuple(shlex.split(os.environ.get(TARGET_VARIABLE, "")))
    return given or native_target(platform.machine(), processor())


def native_target(machine: str, described: str) -> tuple[str, ...]:
    """Returns the compiler's options for a processor; on ARM those of its level, since tests run only the levels."""
    levels = runnable(LEVELS, machine, described)
    return levels[0].options if levels and machine == "aarch64" else NATIVE_TARGET


def cache() -> Path:
    """Returns where libraries are kept: `baton` in `$XDG_CACHE_HOME` or `~/.cache`.

    Raises `NativeError` without a home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "baton"
    try:
        return Path.home() / ".cache" / "baton"
    except RuntimeError as error:
        raise NativeError("this user has no home directory to keep native operators in; set XDG_CACHE_HOME") from error


def compiler() -> list[str]:
    """Finds `$CC`, or the first of `COMPILER_NAMES` on the PATH. Raises `NativeError` where there is none."""
    given = shlex.split(os.environ.get("CC", ""))
    for command in [given] if given else [[name] for name in COMPILER_NAMES]:
        if shutil.which(command[0]) is not None:
            return command
    looked = shlex.join(given) if given else ", ".join(COMPILER_NAMES)
    raise NativeError(f"there is no C compiler on the PATH (looked for {looked}); {WITHOUT_COMPILER}")


def version(command: list[str]) -> str:
    """Returns the compiler's version text. Raises `NativeError` where it cannot be run."""
    return _run([*command, "--version"]).stdout


def machine_of(command: list[str]) -> str:
    """Returns the machine that the compiler compiles for, such as x86_64. Raises `NativeError` if it cannot be run."""
    return _run([*command, "-dumpmachine"]).stdout.partition("-")[0].strip()


def processor() -> str:
    """Returns a text of the processor's model and features, on which its compiler options depend."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    named = ("model name", "cpu family", "model", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in named}))


def compile_library(command: list[str], target: Sequence[str], library: Path, mode: int = 0o777) -> None:
    """Compiles the operators into a library; `mode` is that of a new directory.

    Raises `NativeError` if the compiler fails or the library cannot be written.
    """
    compiling = [*command, *COMPILER_FLAGS, *target]
    sources = sorted(_sources(".c"), key=lambda path: path.name not in SLOWEST_SOURCES)
    with _writing(library.parent):
        library.parent.mkdir(mode=mode, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".compiling-", dir=library.parent) as scratch:
            beside = Path(scratch) / library.name
            objects = [str(Path(scratch) / f"{source.stem}.o") for source in sources]
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                compiled = [
                    pool.submit(_succeed, [*compiling, "-c", str(source), "-o", made])
                    for source, made in zip(sources, objects, strict=True)
                ]
                for each in compiled:
                    each.result()
            build_id = f"-Wl,--build-id=0x{source_digest(target)}"
            _succeed([*compiling, "-shared", build_id, *objects, "-o", str(beside), *LINKED_LIBRARIES])
            beside.rename(library)


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NativeError(f"the native operators cannot be written to {directory}: {error}") from error


def _succeed(command: list[str]) -> None:
    result = _run(command)
    if result.returncode:
        raise NativeError(f"{command[0]} fails: {_first_error(result.stderr)}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeError(f"{command[0]} cannot be run: {error}") from error


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "it does not say why")
