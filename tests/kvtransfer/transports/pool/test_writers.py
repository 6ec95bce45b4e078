"""A writer on a GPU is over with its farewell, or with its process, and not with its socket alone."""

import asyncio
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from contracts.errors import MessageError
from kvtransfer.transports.pool import writers as pool_writers
from kvtransfer.transports.pool.writers import PoolWriters
from tests.kvtransfer.array_pool import ArrayPool
from tests.kvtransfer.pair import SPEC, until

LINK = b"link"
WRITER = """
import socket, sys
way = socket.socket(fileno=int(sys.argv[1]))
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
socket.send_fds(way, [b"x"], [theirs.fileno()])
theirs.close()
ours.recv(1)
for order in sys.stdin:
    if order == "farewell\\n":
        ours.send(b"\\0")
    ours.close()
"""


class PoolOnDevices(ArrayPool):
    """Is offered as a pool in GPUs is; no GPU writes here."""

    class Offered:
        def offered(self) -> bytes:
            return b"handles"

    devices: Any = Offered()


@contextmanager
def writer() -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Starts a process that made the socket whose other end is returned."""
    here, there = socket.socketpair()
    with here, there:
        command = [sys.executable, "-c", WRITER, str(there.fileno())]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, pass_fds=[there.fileno()]) as process:
            try:
                _, (descriptor,), _, _ = socket.recv_fds(here, 1, 1)
                with socket.socket(fileno=descriptor):
                    yield process, descriptor
            finally:
                process.kill()


def say(process: "subprocess.Popen[str]", order: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{order}\n")
    process.stdin.flush()


@pytest.mark.parametrize("end", ["farewell", "kill", "close"])
async def test_the_end_of_a_writer_on_a_gpu(end: str) -> None:
    gone: list[bytes] = []
    writers = PoolWriters(SPEC, PoolOnDevices(SPEC, 4), gone.append)
    assert writers.devices == b"handles" and writers.fingerprint == SPEC.fingerprint()
    with writer() as (process, descriptor):
        writers.take(LINK, descriptor)
        if end == "kill":
            process.send_signal(signal.SIGKILL)
        else:
            say(process, end)
        if end == "close":  # the end of file comes, and the process lives
            await until(lambda: select.select([descriptor], [], [], 0)[0], "the socket stays open")
            for _ in range(3):
                await asyncio.sleep(0)
            assert LINK in writers and not gone
            process.kill()
        await until(lambda: gone == [LINK], "the writer stays")
        assert LINK not in writers
    writers.close()


async def test_a_writer_whose_process_cannot_be_watched_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def unseen(end: socket.socket) -> int:
        raise OSError("a process that is not visible here")

    monkeypatch.setattr(pool_writers, "process_of", unseen)
    writers = PoolWriters(SPEC, PoolOnDevices(SPEC, 4), lambda link: None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with pytest.raises(MessageError, match="not visible"):
            writers.take(LINK, theirs.fileno())
        theirs.close()
        assert ours.recv(1) == b""
    assert LINK not in writers
