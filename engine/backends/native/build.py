"""Compiles the native operators for this processor, once: later starts find the library in the cache.

The file's name is a hash of all that decides its contents: sources, compiler, flags, processor. It is written beside
its place and renamed, so workers that start at the same time do each other no harm.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contracts.errors import NativeError

COMPILER_NAMES = ("cc", "gcc", "clang")
# -ffp-contract=off: the source says where a product and a sum are rounded once; nothing may reorder a sum.
COMPILER_FLAGS = ("-std=gnu11", "-O3", "-fopenmp", "-fPIC", "-fvisibility=hidden", "-Wno-psabi", "-ffp-contract=off")
NATIVE_TARGET = ("-march=native",)
TARGET_VARIABLE = "BATON_NATIVE_TARGET"
"""Environment variable with other target options for the compiler, such as `-march=x86-64-v3` for AVX2."""
LINKED_LIBRARIES = ("-lm",)
COMPILE_TIMEOUT_S = 60.0
"""Timeout of one compiler run."""


def build(target: Sequence[str] = ()) -> Path:
    """Returns the library's path, compiled first where the cache does not have it.

    `target` names the processor's instructions; without it `chosen_target` does. Raises `NativeError`, with the
    compiler's first error, where there is no compiler, it fails, or the cache cannot be written.
    """
    command, target = compiler(), target or chosen_target()
    files = sorted(path for path in (Path(__file__).parent / "csrc").iterdir() if path.suffix in (".c", ".h"))
    key = hashlib.sha256()
    for part in (
        version(command),
        shlex.join(command),
        shlex.join((*COMPILER_FLAGS, *target, *LINKED_LIBRARIES)),
        processor(),
    ):
        key.update(part.encode() + b"\0")
    for path in files:
        key.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    library = cache() / f"operators-{key.hexdigest()[:32]}.so"
    if not library.exists():
        _make([*command, *COMPILER_FLAGS, *target], [path for path in files if path.suffix == ".c"], library)
    return library


def chosen_target() -> tuple[str, ...]:
    """Returns the options in `TARGET_VARIABLE`, or options for all instructions of this processor."""
    return tuple(shlex.split(os.environ.get(TARGET_VARIABLE, ""))) or NATIVE_TARGET


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
    raise NativeError(f"there is no C compiler on the PATH (looked for {looked})")


def version(command: list[str]) -> str:
    """Returns what the compiler says about itself. Raises `NativeError` where it cannot be run."""
    return _run([*command, "--version"]).stdout


def processor() -> str:
    """Describes what `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    named = ("model name", "cpu family", "model", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in named}))


def _make(command: list[str], sources: list[Path], library: Path) -> None:
    try:
        library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".compiling-", dir=library.parent) as scratch:
            beside = Path(scratch) / library.name
            objects = [str(Path(scratch) / f"{source.stem}.o") for source in sources]
            with ThreadPoolExecutor() as pool:
                compiled = [
                    pool.submit(_succeed, [*command, "-c", str(source), "-o", made])
                    for source, made in zip(sources, objects, strict=True)
                ]
                for each in compiled:
                    each.result()
            _succeed([*command, "-shared", *objects, "-o", str(beside), *LINKED_LIBRARIES])
            beside.rename(library)
    except OSError as error:
        raise NativeError(f"the native operators cannot be written to {library.parent}: {error}") from error


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
