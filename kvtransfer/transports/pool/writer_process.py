"""Finds the process at the other end of a Unix socket, to learn when it has ended.

A killed process closes its sockets in any order with its devices, so its GPU may still write behind the end of file.
When the process itself has ended, all its files are closed, and so nothing of it runs on a GPU.
"""

import os
import socket
import struct
from contextlib import suppress

PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
SO_PEERPIDFD = 77  # Linux 6.5, socket(7); it also finds processes in other PID namespaces


def process_of(end: socket.socket) -> int:
    """Returns a pidfd, which is readable when the process that made the socket has ended. Raises `OSError`."""
    with suppress(OSError):
        return end.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    process, _, _ = PEER_CREDENTIALS.unpack(
        end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    )
    if not process:
        raise OSError("a process that is not visible here")
    return os.pidfd_open(process)
