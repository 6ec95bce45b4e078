"""Measures how much of a run is spent inside native operators, with timers around the calls of the library.

The rest is Python, PyTorch's own operators, and the calls of the native operators.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine.backends import choice
from engine.backends.native import library


class NativeTime:
    """Counts the seconds inside native operators so far."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Times the operators of a library that is loaded meanwhile, from then on.

        Layers keep the functions that they call, so this has to happen before they are made.
        """
        original = library.load

        def load() -> ctypes.CDLL:
            loaded = original()
            for name in library.ARGUMENT_TYPES:
                setattr(loaded, name, self._timed(getattr(loaded, name)))
            return loaded

        setattr(choice, "load", load)  # noqa: B010 - it is the name that `choose` looks up
        try:
            yield
        finally:
            setattr(choice, "load", original)  # noqa: B010

    def _timed(self, operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begin = time.perf_counter()
            result = operator(*arguments)
            self.seconds += time.perf_counter() - begin
            return result

        return call
