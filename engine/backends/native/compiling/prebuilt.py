"""Finds native operators that `baton operators --build` compiled, here or on another host.

A library names its level in the file's name, and the digest of its sources in its build ID (`readelf -n` shows it).
"""

import logging
import os
import platform
from pathlib import Path

from contracts.errors import NativeError
from engine.backends.native.compiling.build import TARGET_VARIABLE, build, cache, compiler, processor, source_digest
from engine.backends.native.compiling.levels import LEVELS, Level, runnable
from infra.config.operators import OPERATORS_VARIABLE

LOG = logging.getLogger(__name__)
BUILD_ID_NOTE = b"\x03\0\0\0GNU\0"
"""Type and owner of an ELF note whose contents are the build ID."""
DIGEST_BYTES = 16
HEADER_BYTES = 4096
"""The start of a library, where the linker puts its notes."""


def directory() -> Path:
    """Returns where a start looks for libraries. Raises `NativeError` without a home."""
    given = os.environ.get(OPERATORS_VARIABLE, "")
    return Path(given) if given else cache() / "operators"


def library_of(level: Level, folder: Path) -> Path:
    return folder / f"operators-{level.name}.so"


def digest_of(library: Path) -> str:
    """Returns the digest of a library's sources; empty without a build ID. Raises `NativeError` if unreadable."""
    try:
        with library.open("rb") as file:
            found = file.read(HEADER_BYTES).partition(BUILD_ID_NOTE)[2]
    except OSError as error:
        raise NativeError(f"the native operators cannot be read: {error}") from error
    return found[:DIGEST_BYTES].hex()


def find(folder: Path) -> Path | None:
    """Returns the library of the best level that this host runs, or None.

    Raises `NativeError` if it was compiled from other sources.
    """
    for level in runnable(LEVELS, platform.machine(), processor()):
        library, wanted = library_of(level, folder), source_digest(level.options)
        if not library.exists():
            continue
        if (found := digest_of(library)) != wanted:
            has = f"has the source digest {found}" if found else "has no source digest"
            raise NativeError(f"{library} {has}, and this version needs {wanted}: build it again")
        return library
    return None


def choose_library(target: tuple[str, ...] = ()) -> Path:
    """Returns the library to load: a prebuilt library, else a library compiled here.

    `target` or `TARGET_VARIABLE` wants a library compiled here. Raises `NativeError` where neither is possible.
    """
    refused = ""
    if not target and not os.environ.get(TARGET_VARIABLE):
        folder = directory()
        try:
            if library := find(folder):
                LOG.info("native operators from %s", library)
                return library
        except NativeError as error:
            refused = str(error)
    try:
        library = build(target)
    except NativeError as error:
        raise NativeError(f"{refused}; {error}" if refused else str(error)) from error
    if refused:
        LOG.warning("%s; native operators are compiled here instead", refused)
    return library


def may_load() -> bool:
    """Returns whether there is a prebuilt library or a compiler; neither is tried."""
    try:
        if find(directory()):
            return True
    except NativeError:
        pass  # a compiled library may replace the refused one
    try:
        compiler()
    except NativeError:
        return False
    return True
