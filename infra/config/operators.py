"""Settings of `baton operators`, and of where a start looks for native operators."""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.kinds import DirectoryPath

OPERATORS_VARIABLE = "BATON_OPERATORS"
"""Environment variable with the directory of compiled native operators."""


class OperatorsConfig(Struct, frozen=True, kw_only=True):
    """Lists the native operators for CPUs, or compiles them with $CC, cc, gcc or clang for hosts without a compiler.

    Example: ./baton operators --build --level all --out operators; elsewhere BATON_OPERATORS=operators ./baton up
    """

    build: Annotated[bool, Meta(description="compile, instead of a list")] = False
    level: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME"},
            description="instruction level to compile for, or all of the compiler's machine; empty: this host's best",
        ),
    ] = ""
    out: Annotated[
        DirectoryPath,
        Meta(
            description="directory of the libraries; empty: the directory that a start looks into, BATON_OPERATORS or "
            "baton/operators in $XDG_CACHE_HOME or ~/.cache"
        ),
    ] = ""
