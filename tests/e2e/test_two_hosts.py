"""Two hosts that are joined by a slow link which loses packets: the link itself, and the split system across it."""

import hashlib
import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pricing.links import Nearness, nearness
from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.host import NAMESPACES, Host, need_root_and
from tests.e2e.harness.system import System
from tests.e2e.harness.two_hosts import ADDRESSES, ADDRESSES_6, DEVICE, two_hosts
from tests.waiting import wait_until

DELAY = 0.02  # seconds one way, so that a round trip takes 40 ms at least
LOSS = 0.01
LENGTHS = [1, 15, 16, 17, 40, 64, 65, 100, 128, 200, 300, 511]
WORKER = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "56", "--kv-transport", "tcp")
PORTS = range(20000, 20004)
REACHED = ("--announce", DEVICE, "--ports", f"{PORTS.start}-{PORTS.stop - 1}", "--link-connections", "3")


@pytest.fixture(autouse=True)
def needs() -> None:
    need_root_and(ip="iproute2")


def connected(a: Host, b: Host) -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection between two hosts."""
    with b.inside():
        listener = socket.create_server((b.address, 0))
    with listener, a.inside():
        near = socket.create_connection(listener.getsockname(), timeout=60)
        far, _ = listener.accept()
    far.settimeout(60)
    return near, far


def test_bytes_cross_whole_and_late_and_leave_nothing_behind() -> None:
    before = set(os.listdir("/proc/self/fd")), threading.active_count()
    data = os.urandom(1 << 20)
    with two_hosts(DELAY, LOSS, seed=1) as hosts:
        near, far = connected(hosts.a, hosts.b)
        with near, far:
            began = time.monotonic()
            near.sendall(b"?")
            far.sendall(far.recv(1))
            assert near.recv(1) == b"?"
            assert time.monotonic() - began >= 2 * DELAY  # the link is no faster than it says, whatever the machine
            sender = threading.Thread(target=near.sendall, args=(data,))
            sender.start()
            received = b""
            while len(received) < len(data):
                received += far.recv(1 << 20)
            sender.join()
            assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()
        there, back = hosts.directions
        assert there.carried_bytes > len(data) and back.carried > 0
        assert 0 < there.dropped < there.carried / 10
        names = [hosts.a.namespace, hosts.b.namespace]
        assert all((NAMESPACES / name).exists() for name in names)
        with hosts.b.inside(), pytest.raises(OSError, match="unreachable"):
            socket.create_connection(("192.0.2.1", 9), timeout=1)  # there is no other way out (TEST-NET-1, RFC 5737)
    assert not any((NAMESPACES / name).exists() for name in names)
    assert (set(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_what_is_lost_follows_from_the_seed() -> None:
    def lost(seed: int) -> list[bool]:
        with two_hosts(0.0, 0.5, seed) as hosts:
            with hosts.a.inside():
                sender = socket.socket(type=socket.SOCK_DGRAM)
            with hosts.b.inside():
                receiver = socket.socket(type=socket.SOCK_DGRAM)
            with sender, receiver:
                receiver.bind((hosts.b.address, 0))
                receiver.settimeout(10)
                for number in range(32):
                    sender.sendto(bytes([number]), receiver.getsockname())
                there = hosts.directions[0]
                wait_until(lambda: there.carried + there.dropped == 32, "every packet to have met its fate")
                arrived = {receiver.recv(1)[0] for _ in range(there.carried)}
        return [number not in arrived for number in range(32)]

    assert lost(3) == lost(3) != lost(4)


@pytest.mark.timeout(180)
def test_the_split_system_gives_the_references_tokens_across_the_link(tmp_path: Path) -> None:
    """The decode worker on one host, and by IPv6; all else on the other, and by IPv4.

    Workers announce the interface of the link, listen on ports of a range, and pass KV over three connections.
    """
    model = build_served_model(tmp_path / "model", "llama")
    runs = references(model, LENGTHS, new_tokens=24)
    with two_hosts(DELAY, LOSS, seed=2) as hosts:

        def host_of(name: str) -> Host:
            return replace(hosts.b, address=ADDRESSES_6[1]) if name.startswith("decode") else hosts.a

        with System(tmp_path, model, worker=[*WORKER, *REACHED], host_of=host_of) as system:
            with hosts.a.inside():
                for some in (runs[:1], runs[1:]):  # the first pays for the connections
                    assert complete_all(system.gateway_url, some) == [run.tokens for run in some]
            records = {record.role: record for record in system.wait_until_idle()}
            decode = records["decode"]
            finished = system.finished()
        to_decode, to_prefill = hosts.directions
    urls = [urlsplit(each) for each in (records["prefill"].address, decode.address, decode.handoff_address)]
    assert [url.hostname for url in urls] == [ADDRESSES[0], ADDRESSES_6[1], ADDRESSES_6[1]]
    assert all(url.port in PORTS for url in urls)
    assert nearness(records["prefill"].place, decode.place) is Nearness.HOST  # two namespaces of one machine
    assert records["prefill"].links[0].bytes_per_second > 0
    assert decode.load.handoffs == len(runs) and decode.load.prompt_tokens == 0
    assert decode.load.handoff_bytes < to_decode.carried_bytes  # all KV went over this link
    assert to_decode.dropped > 0 and to_prefill.dropped > 0
    assert all(record.attempts == 1 for record in finished)  # nobody was taken for dead
    print(f"{DELAY * 1000:.0f} ms one way, {LOSS:.0%} of packets lost: {to_decode.dropped} and {to_prefill.dropped}")
    for record in sorted(finished, key=lambda record: record.prompt_tokens):
        print(
            f"prompt {record.prompt_tokens:4} tokens, prefill {record.prefill_ms:6.0f} ms, handoff "
            f"{record.handoff_bytes / 1024:6.0f} KiB in {record.handoff_ms:6.0f} ms, of which "
            f"{record.exposed_ms:6.0f} ms exposed; first token {record.ttft_ms:6.0f} ms"
        )
