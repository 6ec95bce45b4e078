"""Memory that processes of one host share: an unnamed file (memfd_create(2)) that each of them maps.

The file passes through Unix sockets as a descriptor. It needs no room in /dev/shm and no removal: the system frees it
after the last descriptor and mapping, however the processes end. Mappings begin at a multiple of a huge page, so that
one translation can cover 2 MiB in every process.
"""

import ctypes
import fcntl
import mmap
import os
import weakref

import numpy as np

SIZE_SEALS = 0x2 | 0x4  # fcntl's F_SEAL_SHRINK and F_SEAL_GROW, which only Linux has
"""If the file could shrink, a process that accessed the removed pages would crash."""
HUGE_PAGE_BYTES = 2 << 20
MAP_FIXED = 0x10  # which Python has no name for
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def shared_memory(name: str, size: int) -> int:
    """Returns the descriptor of new memory, whose pages cost nothing before they are used. Raises `OSError`."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SIZE_SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_shared(descriptor: int, size: int) -> None:
    """Raises `OSError` for memory of another size, or memory that can shrink."""
    found = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)  # EINVAL for other files
    if found & SIZE_SEALS != SIZE_SEALS or os.fstat(descriptor).st_size != size:
        raise OSError(f"not shared memory of {size} bytes")


def map_shared(descriptor: int, size: int) -> memoryview:
    """Maps a file until the last view of the mapping is deleted; the caller closes the file. Raises `OSError`."""
    check_shared(descriptor, size)
    room = size + HUGE_PAGE_BYTES
    begin = _mapped(None, room, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    address = -(-begin // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    try:
        _mapped(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, descriptor)
    except OSError:
        _libc.munmap(begin, room)
        raise
    array = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(array, _libc.munmap, begin, room).atexit = False  # a thread may still use it then
    return np.ctypeslib.as_array(array).data


def _mapped(address: int | None, size: int, access: int, flags: int, descriptor: int) -> int:
    found = _libc.mmap(address, size, access, flags, descriptor, 0)
    if found in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(found)
