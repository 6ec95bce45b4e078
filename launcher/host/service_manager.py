"""Tells systemd that an instance is ready, if systemd started it: sd_notify(3) is one datagram."""

import os
import socket
from contextlib import suppress

SOCKET_VARIABLE = "NOTIFY_SOCKET"


def notify(state: str) -> None:
    """Sends a state such as `READY=1`; without a service manager, nothing."""
    path = os.environ.get(SOCKET_VARIABLE, "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
