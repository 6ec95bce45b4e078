"""Tells of a process what Linux knows in /proc: where it listens, and how much memory of its own it has (proc(5))."""

import os
from pathlib import Path

LISTEN = "0A"  # the state of a TCP socket, of tcp_states.h
ACCEPTS = 1 << 16  # __SO_ACCEPTCON, a flag of a UNIX socket


def listening(pid: int) -> list[str]:
    """Returns `tcp://127.0.0.1:port` and `ipc://path` of each socket that takes connections; looks for no IPv6."""
    inodes = {link.removeprefix("socket:[").rstrip("]") for link in _links(pid) if link.startswith("socket:[")}
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTEN and fields[9] in inodes:
            found.append(f"tcp://127.0.0.1:{int(fields[1].rpartition(':')[2], 16)}")
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & ACCEPTS and fields[6] in inodes and len(fields) == 8:
            found.append(f"ipc://{fields[7]}")
    return found


def resident(pid: int) -> int:
    """Returns the bytes in memory that are the process's own: a file's pages do not count (`RssAnon`)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def _links(pid: int) -> list[str]:
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except FileNotFoundError:  # closed meanwhile
            continue
    return links
