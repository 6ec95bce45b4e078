"""Two network namespaces whose only way to each other is a slow IP link that loses packets.

Not every kernel has netem, so the link is a thread between two TUN devices: what it reads from one it writes to the
other, later or never. Which packets of a direction are lost follows from the seed and their order alone.
"""

import fcntl
import os
import random
import selectors
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.e2e.harness.host import Host, ip, namespace

DEVICE = "link"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
ADDRESSES_6 = ("fd77::1", "fd77::2")
LARGEST_PACKET = 1500  # bytes; what a TUN device's MTU is by default
TUNSETIFF = 0x400454CA  # linux/if_tun.h, as the three below
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
IFREQ = "16sH22x"


@dataclass
class Direction:
    source: int  # a TUN device's file descriptor
    target: int
    chance: random.Random
    carried: int = 0  # packets
    carried_bytes: int = 0
    dropped: int = 0  # packets


@dataclass
class TwoHosts:
    """`a` and `b`, the direction from each to the other, and the link's figures: seconds one way, share of packets."""

    a: Host
    b: Host
    delay: float
    loss: float
    directions: tuple[Direction, Direction]

    def forward(self, wake: int) -> None:
        """The thread's body, until something can be read from `wake`."""
        under_way: deque[tuple[float, int, bytes]] = deque()  # in the order in which they are due: all wait the same
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            for direction in self.directions:
                selector.register(direction.source, selectors.EVENT_READ, direction)
            while True:
                pause = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
                for key, _ in selector.select(pause):
                    if key.fd == wake:
                        return
                    self._take(key.data, under_way)
                while under_way and under_way[0][0] <= time.monotonic():
                    _, target, packet = under_way.popleft()
                    os.write(target, packet)

    def _take(self, direction: Direction, under_way: deque[tuple[float, int, bytes]]) -> None:
        packet = os.read(direction.source, LARGEST_PACKET)
        if direction.chance.random() < self.loss:
            direction.dropped += 1
            return
        direction.carried += 1
        direction.carried_bytes += len(packet)
        under_way.append((time.monotonic() + self.delay, direction.target, packet))


@contextmanager
def two_hosts(delay: float, loss: float, seed: int = 0) -> Iterator[TwoHosts]:
    """The hosts with the link between them; after it, thread, devices and names are gone.

    `delay` is one way, in seconds; `loss` is the share of packets that do not arrive, in each direction.
    """
    with ExitStack() as stack:
        a, b = (stack.enter_context(namespace(name, at)) for name, at in zip("ab", ADDRESSES, strict=True))
        near, far = (_tun(host, address, stack) for host, address in zip((a, b), ADDRESSES_6, strict=True))
        directions = (
            Direction(near, far, random.Random(f"{seed} a to b")),
            Direction(far, near, random.Random(f"{seed} b to a")),
        )
        hosts = TwoHosts(a, b, delay, loss, directions)
        wake = os.eventfd(0)
        stack.callback(os.close, wake)
        thread = threading.Thread(target=hosts.forward, args=(wake,), name="link")
        thread.start()
        try:
            yield hosts
        finally:
            os.eventfd_write(wake, 1)
            thread.join()


def _tun(host: Host, address: str, stack: ExitStack) -> int:
    """A TUN device in a namespace, with its addresses; it lives as long as its file descriptor."""
    with host.inside():
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, descriptor)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack(IFREQ, DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    ip("-n", host.namespace, "address", "add", f"{host.address}/30", "dev", DEVICE)
    ip("-n", host.namespace, "address", "add", f"{address}/64", "dev", DEVICE, "nodad")
    # Without IPv6 addresses of the system's own nothing crosses the link but what the hosts send each other.
    ip("-n", host.namespace, "link", "set", "dev", DEVICE, "addrgenmode", "none")
    ip("-n", host.namespace, "link", "set", "dev", DEVICE, "up")
    return descriptor
