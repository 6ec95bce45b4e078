"""Turns signals into data: a handler counts the signal and wakes the launcher's loop, which decides."""

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Counts stop signals; `wakeup` becomes readable at any signal, SIGCHLD included."""

    def __init__(self) -> None:
        self.wakeup, self._writer = socket.socketpair()
        self.wakeup.setblocking(False)
        self._writer.setblocking(False)
        self.asked_to_stop = 0

    def drain(self) -> None:
        try:
            while self.wakeup.recv(512):
                pass
        except BlockingIOError:
            pass

    def note(self, number: int, frame: FrameType | None) -> None:
        if number in STOP_SIGNALS:
            self.asked_to_stop += 1

    def wait(self, seconds: float) -> None:
        """Returns at any signal, or after `seconds`."""
        if select.select([self.wakeup], [], [], seconds)[0]:
            self.drain()

    def ask_to_stop(self) -> None:
        """Acts like a stop signal, for a supervisor in a thread of another program's process."""
        self.asked_to_stop += 1
        with suppress(BlockingIOError):  # full of earlier wake-ups
            self._writer.send(b"\0")

    def close(self) -> None:
        self.wakeup.close()
        self._writer.close()

    @contextmanager
    def installed(self) -> Iterator["Signals"]:
        """Installs the handlers until exit. An ignored SIGHUP (`nohup`) stays ignored."""
        previous = {}
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
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
