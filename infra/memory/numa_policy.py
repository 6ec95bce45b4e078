"""Sets the memory policy of this thread, and of the threads and processes that it starts later (set_mempolicy(2)).

The C library has no functions for these system calls.
"""

import ctypes
import os
import platform
from collections.abc import Sequence

SYSTEM_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
"""Numbers of set_mempolicy and get_mempolicy."""
MPOL_DEFAULT = 0
MPOL_INTERLEAVE = 3
WORD_BITS = 64


def has_own_policy() -> bool:
    """Returns whether a policy is set, such as by numactl. Raises `OSError` where the kernel refuses to say."""
    mode = ctypes.c_int()
    _call(1, ctypes.byref(mode), None, 0, None, 0)
    return mode.value != MPOL_DEFAULT


def interleave(nodes: Sequence[int]) -> None:
    """Spreads pages that are touched from now on over `nodes`, in turn. Raises `OSError` where it is refused."""
    words = (ctypes.c_uint64 * (max(nodes) // WORD_BITS + 1))()
    for node in nodes:
        words[node // WORD_BITS] |= 1 << node % WORD_BITS
    # The kernel reads one bit less than it is told.
    _call(0, MPOL_INTERLEAVE, words, ctypes.c_ulong(len(words) * WORD_BITS + 1))


def _call(which: int, *arguments: object) -> None:
    numbers = SYSTEM_CALLS.get(platform.machine())
    if numbers is None:
        raise OSError(f"no system call is known for {platform.machine()}")
    if ctypes.CDLL(None, use_errno=True).syscall(numbers[which], *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
