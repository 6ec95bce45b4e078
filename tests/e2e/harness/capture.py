"""What tshark sees on a host's loopback interface, complete from the first moment to the last: raw bytes by TCP port.

A capture has begun, and holds all that was sent, when datagrams that say so stand in its file.
"""

import signal
import socket
import struct
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from tests.e2e.harness.host import Host
from tests.waiting import DEADLINE_S, wait_until

KERNEL_BUFFER = "64"  # MiB, so that a burst waits there and is not dropped
HEADER = struct.Struct("<IHHiIII")  # of a pcap file: magic, version, version, zone, accuracy, longest, link type
RECORD = struct.Struct("<IIII")  # of a packet: seconds, microseconds, bytes here, bytes on the wire
MAGIC, ETHERNET, TCP = 0xA1B2C3D4, 1, 6


@contextmanager
def captured(host: Host, path: Path) -> Iterator[None]:
    """Everything on the host's loopback interface meanwhile is in the pcap file `path` afterwards. Needs root."""
    log = path.with_suffix(".log")
    command = ["tshark", "-i", "lo", "-f", "ip", "-B", KERNEL_BUFFER, "-F", "pcap", "-w", str(path)]
    with log.open("wb") as output, host.inside():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        wait_until(lambda: process.poll() is not None or "Capturing on" in log.read_text(), "tshark to begin")
        first: list[bytes] = []

        def begun() -> bool:
            first.append(_probe(host))  # the one before may have come too early
            return process.poll() is not None or any(_seen(each, path) for each in first)

        wait_until(begun, "a packet in the capture")
        yield
        last = _probe(host)
        wait_until(lambda: process.poll() is not None or _seen(last, path), "the last packet in the capture")
    finally:
        process.send_signal(signal.SIGINT)
        try:
            status = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    told = log.read_text()
    assert status == 0 and "dropped" not in told, told  # it names a count of dropped packets if there are any


def tcp_streams(path: Path) -> dict[tuple[int, int], bytes]:
    """The bytes of each direction, by the ports from and to, in the order of the capture."""
    data = path.read_bytes()
    magic, *_, link_type = HEADER.unpack_from(data)
    assert (magic, link_type) == (MAGIC, ETHERNET), "not a pcap file of Ethernet frames"
    streams: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    at = HEADER.size
    while at < len(data):
        _, _, size, whole = RECORD.unpack_from(data, at)
        assert size == whole, "a packet was cut"
        at += RECORD.size
        frame, at = data[at : at + size], at + size
        packet = frame[14:]  # behind the Ethernet header
        if packet[9] != TCP:
            continue
        segment = packet[4 * (packet[0] & 15) :]
        streams[struct.unpack_from(">HH", segment)].append(segment[4 * (segment[12] >> 4) :])
    return {ports: b"".join(parts) for ports, parts in streams.items()}


def _probe(host: Host) -> bytes:
    """Sends a datagram that nobody waits for; its content, unlike any other."""
    content = uuid4().bytes
    with host.inside(), socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.bind((host.address, 0))
        sender.sendto(content, sender.getsockname())
    return content


def _seen(content: bytes, path: Path) -> bool:
    return path.exists() and content in path.read_bytes()
