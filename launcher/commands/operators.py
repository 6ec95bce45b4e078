"""Hands `baton operators` over to the engine's own process, which the launcher does not import."""

import os
import sys
from collections.abc import Sequence


def operators(arguments: Sequence[str]) -> int:
    """Replaces this process; it does not return."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "engine.backends.native.compiling.operators", *arguments])
