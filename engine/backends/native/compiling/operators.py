"""Lists and compiles native operators: the process of `baton operators`. It loads no torch."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from contracts.errors import BatonError, ConfigError, NativeError
from engine.backends.native.compiling.build import compile_library, compiler, machine_of, processor, source_digest
from engine.backends.native.compiling.levels import LEVELS, Level, runnable
from engine.backends.native.compiling.prebuilt import digest_of, directory, library_of
from infra.cli import parse_or_exit
from infra.config.operators import OperatorsConfig

ALL_LEVELS = "all"


def main() -> int:
    """Runs the command. Returns the exit status: 0 done, 2 bad input, no compiler, or a compiler that fails."""
    config = parse_or_exit(OperatorsConfig, "baton operators")
    try:
        folder = Path(config.out).absolute() if config.out else directory()
        if config.build:
            _build(config.level, folder)
        else:
            print("\n".join(_lines(folder)))
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _build(name: str, folder: Path) -> None:
    command = compiler()
    for level in _wanted(name, machine_of(command)):
        library = library_of(level, folder)
        compile_library(command, level.options, library)
        print(f"{library}: source digest {source_digest(level.options)}", flush=True)


def _wanted(name: str, machine: str) -> list[Level]:
    """Returns the levels to compile. Raises `ConfigError` for a level that this compiler cannot compile."""
    possible = [level for level in LEVELS if level.machine == machine]
    if name == ALL_LEVELS:
        found = possible
    elif name:
        found = [level for level in possible if level.name == name]
    else:
        found = runnable(LEVELS, platform.machine(), processor())[:1]
    if not found or found[0] not in possible:
        names = ", ".join(level.name for level in possible) or "none"
        raise ConfigError("--level", name, f"levels of this compiler, which compiles for {machine}: {names}; or all")
    return found


def _lines(folder: Path) -> Iterator[str]:
    """Yields a line for each level: whether this host runs it, its library's source digest, and the library."""
    here = runnable(LEVELS, platform.machine(), processor())
    for level in LEVELS:
        library = library_of(level, folder)
        runs = "runs here" if level in here else "does not run here"
        yield f"{level.name:<12} {level.machine:<8} {runs:<18} {_state(level, library)}"


def _state(level: Level, library: Path) -> str:
    if not library.exists():
        return f"no library: {library}"
    wanted = source_digest(level.options)
    try:
        found = digest_of(library)
    except NativeError as error:
        return str(error)
    fits = "" if found == wanted else f" (refused: this version needs {wanted})"
    return f"{library}: source digest {found or 'missing'}{fits}"


if __name__ == "__main__":
    raise SystemExit(main())
