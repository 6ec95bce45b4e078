"""Turns signals into data: they are noted and wake the launcher's one loop, which decides; handlers do no more."""

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Counts the signals that ask to stop; `wakeup` becomes readable at any signal, the death of a child included."""

    def __init__(self) -> None:
        self.wakeup, self._writer = socket.socketpair()
        self.wakeup.setblocking(False)
        self._writer.setblocking(False)
        self.asked_to_stop = 0

    def drain(self) -> None:
        """Empties `wakeup`."""
        try:
            while self.wakeup.recv(512):
                pass
        except BlockingIOError:
            pass

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handles every signal."""
        if number in STOPPING:
            self.asked_to_stop += 1

    def wait(self, seconds: float) -> None:
        """Returns at any signal, or after so many seconds."""
        if select.select([self.wakeup], [], [], seconds)[0]:
            self.drain()

    def ask_to_stop(self) -> None:
        """Does what a signal would, for whoever runs a supervisor in a thread of a process that is not its own."""
        self.asked_to_stop += 1
        with suppress(BlockingIOError):  # full of earlier ones
            self._writer.send(b"\0")

    def close(self) -> None:
        """Lets go of the sockets."""
        self.wakeup.close()
        self._writer.close()

    @contextmanager
    def installed(self) -> Iterator["Signals"]:
        """Handles the signals for a while. A hang-up that is ignored (`nohup`) stays ignored."""
        previous = {}
        for number in (*STOPPING, signal.SIGCHLD):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            previous[number] = signal.signal(number, self.note)
        descriptor = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in previous.items():
                signal.signal(number, handler)
            self.close()
