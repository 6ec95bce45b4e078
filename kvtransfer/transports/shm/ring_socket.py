"""Hands rings of shared memory from prefill to decode workers of one host, through a Unix socket in a shared directory.

The descriptor goes with one datagram (SCM_RIGHTS, unix(7)), so it passes between containers: only the socket's
directory has to be shared, no PID namespace and no /proc. A datagram has no half-open states: a sender that dies has
sent it or not, and the system closes descriptors that nobody has received. Each end checks that the other end is of its
own user: the sender by the socket's owner, the receiver by the credentials that the system adds. The user name and the
token of the link's Offer say which link a ring is for.
"""

import array
import asyncio
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

USER_BYTES, TOKEN_BYTES = 16, 16
PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
RINGS_SUPPORTED = all(
    hasattr(*each) for each in ((socket, "SO_PASSCRED"), (os, "memfd_create"), (fcntl, "F_ADD_SEALS"))
)
"""Whether this platform has the system calls for rings, as Linux does."""
TakeRing = Callable[[bytes, bytes, int], None]
"""Takes a user name, a token and a descriptor, which is closed after the call."""


class RingQueueFull(OSError):
    """More rings wait for the decode worker than the system queues (net.unix.max_dgram_qlen)."""


class RingSocket:
    """A decode worker's end."""

    def __init__(self, path: Path, take: TakeRing) -> None:
        """Binds it, and reads it in the running event loop; `take` gets each ring that arrives. Raises `OSError`."""
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(os.fsencode(path))
        except BaseException:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket, self.receive)

    def receive(self) -> None:
        """Takes all rings that have arrived; foreign and malformed datagrams are dropped."""
        room = socket.CMSG_SPACE(PEER_CREDENTIALS.size) + socket.CMSG_SPACE(array.array("i").itemsize)
        while True:
            try:
                text, ancillary, _, _ = self._socket.recvmsg(
                    USER_BYTES + TOKEN_BYTES + 1, room, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            descriptors, user = array.array("i"), -1
            for _, kind, data in ancillary:
                if kind == socket.SCM_RIGHTS:
                    descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
                elif kind == socket.SCM_CREDENTIALS:
                    _, user, _ = PEER_CREDENTIALS.unpack(data)
            try:
                if user == os.getuid() and len(descriptors) == 1 and len(text) == USER_BYTES + TOKEN_BYTES:
                    self._take(text[:USER_BYTES], text[USER_BYTES:], descriptors[0])
            finally:
                for each in descriptors:
                    os.close(each)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()


def hand_over(path: str, user: str, token: str, descriptor: int) -> None:
    """Sends a ring to the decode worker that listens at `path`; `user` and `token` are hexadecimal, from its Offer.

    Raises `RingQueueFull` if it cannot take one now, `OSError` if it cannot take any, and `ValueError` for a name or
    token of another form.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        sender.connect(os.fsencode(path))
        try:
            socket.send_fds(sender, [bytes.fromhex(user), bytes.fromhex(token)], [descriptor])
        except BlockingIOError:
            raise RingQueueFull("other rings fill the decode worker's queue") from None


def check_own_socket(path: str) -> None:
    """Raises `OSError` if there is no Unix socket of this process's user at `path`."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise OSError(f"no {path} here: another host, or a directory that is not shared (--kv-directory)") from None
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(f"{path} is no socket of this worker's user")
