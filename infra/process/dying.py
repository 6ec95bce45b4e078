"""Has a child process die with the one that started it, however that ends."""

import ctypes
import os
import signal
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int) -> Callable[[], None]:
    """Makes what a child runs before its program, so that the kernel kills it when the parent dies (prctl(2))."""

    def prepare() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return prepare
