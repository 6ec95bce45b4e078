"""A ring's memory goes to whom it is for, once, and nobody else's descriptor stays open."""

import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
from msgspec.structs import replace

from contracts.messages.handoff import Join, Offer
from contracts.messages.wire import encode
from infra.memory.shared_mapping import shared_memory
from infra.network.addresses import Network
from kvtransfer.decode_transfer import DecodeTransfer
from kvtransfer.transports.joining import Joining
from kvtransfer.transports.shm.ring import Ring
from kvtransfer.transports.shm.ring_socket import check_own_socket, hand_over
from tests.e2e.harness.host import need_root_and
from tests.kvtransfer.array_pool import ArrayPool
from tests.kvtransfer.descriptors import open_files
from tests.kvtransfer.pair import CONFIG, DECODE, PREFILL, SPEC, until
from tests.kvtransfer.world import layer
from tests.network import SECRET

JOIN = Join(sender=PREFILL, receiver=DECODE, transports=("shm", "tcp"), security="sealed", nonce=bytes(32))
NOBODY = 65534


@asynccontextmanager
async def offered(directory: Path) -> AsyncIterator[tuple[DecodeTransfer, Offer]]:
    """A decode worker, and its Offer to a sender that has joined."""
    network = Network.of(SECRET)
    config = replace(CONFIG, kv_directory=str(directory))
    side = DecodeTransfer(config, DECODE, SPEC, ArrayPool(SPEC, 2), network, lambda event: None)
    try:
        offer = side._sessions.join(b"link", JOIN, time.monotonic())
        assert offer is not None
        yield side, offer
    finally:
        await side.close()
        await network.destroy()


def ring_of(side: DecodeTransfer) -> Ring | None:
    session = side._sessions.of(b"link")
    assert session is not None
    return session.ring


def handed(offer: Offer, size: int = 0, token: str = "") -> None:
    """Hands over a ring of this offer, or of another size or with another token."""
    descriptor = shared_memory("ring", size or offer.ring)
    os.pwrite(descriptor, token.encode(), 0)
    hand_over(offer.shm, offer.user, token or offer.token, descriptor)
    os.close(descriptor)


def bare(offer: Offer, text: bytes, descriptors: list[int]) -> None:
    """Sends a datagram of any form."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(offer.shm)
        socket.send_fds(sender, [text], descriptors)


def own(offer: Offer) -> bytes:
    return bytes.fromhex(offer.user + offer.token)


REFUSED: dict[str, tuple[Callable[[Offer], None], int]] = {
    "another token": (lambda offer: handed(offer, token="00" * 16), 1),
    "an unknown user": (lambda offer: handed(replace(offer, user="00" * 16)), 1),
    "another size": (lambda offer: handed(offer, size=1 << 16), 1),
    "another file": (lambda offer: bare(offer, own(offer), [0]), 1),
    "no descriptor": (lambda offer: bare(offer, own(offer), []), 0),
    "two descriptors": (lambda offer: bare(offer, own(offer), [0, 0]), 0),
    "a short text": (lambda offer: bare(offer, own(offer)[:-1], [0]), 0),
    "a long text": (lambda offer: bare(offer, own(offer) + b"0", [0]), 0),
}
"""What a sender of the same user may do wrong, and how often it is counted."""


@pytest.mark.parametrize("wrong", REFUSED)
async def test_a_ring_that_nobody_waits_for_is_closed(tmp_path: Path, wrong: str) -> None:
    async with offered(tmp_path) as (side, offer):
        before = open_files()
        send, counted = REFUSED[wrong]
        send(offer)
        handed(offer)
        await until(lambda: ring_of(side) is not None, "the good ring behind it does not arrive")
        ring = ring_of(side)
        assert ring is not None and bytes(ring.views(0, 1)[0]) == b"\0", "it is the other ring"
        assert side.refused["ring"] == counted
        assert open_files() == before + 1, "a mapping has a descriptor of its own"
        del ring
        side._sessions.forget(b"link")
        assert open_files() == before


async def test_a_payload_that_is_read_before_its_ring_is_found_there(tmp_path: Path) -> None:
    """The two come through different sockets; the ring was sent first."""
    async with offered(tmp_path) as (side, offer):
        handed(offer)
        side._receive([zmq.Frame(b"link"), zmq.Frame(encode(layer(0, 0, 0, 1)))])
        assert ring_of(side) is not None and not side.refused


async def test_a_second_ring_of_a_link_is_refused(tmp_path: Path) -> None:
    async with offered(tmp_path) as (side, offer):
        handed(offer)
        await until(lambda: ring_of(side) is not None, "the first does not arrive")
        first = ring_of(side)
        handed(offer)
        await until(lambda: side.refused["ring"], "the second is not looked at")
        assert ring_of(side) is first


async def test_another_user_cannot_hand_a_ring_over(tmp_path: Path) -> None:
    """Not even with the token, and with a socket that was connected before."""
    need_root_and()

    async with offered(tmp_path) as (side, offer):
        assert side._payload_sockets.rings is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(offer.shm)
            child = os.fork()
            if not child:
                os.setuid(NOBODY)
                socket.send_fds(sender, [own(offer)], [shared_memory("ring", offer.ring)])
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        side._payload_sockets.rings.receive()
        assert ring_of(side) is None


async def test_a_worker_gives_its_ring_to_sockets_of_its_own_user_only(tmp_path: Path) -> None:
    need_root_and()

    async with offered(tmp_path) as (_, offer):
        os.chown(offer.shm, NOBODY, -1)
        with pytest.raises(OSError, match="is no socket of this worker's user"):
            check_own_socket(offer.shm)


async def test_the_log_says_why_a_better_way_was_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async with offered(tmp_path) as (_, offer):
        network = Network.of(SECRET)
        joining = Joining(CONFIG, (PREFILL, DECODE), network, SPEC, None, "tcp://127.0.0.1:9")  # type: ignore[arg-type]
        channel = joining.channel(replace(offer, shm="/nowhere/rings", ipc=""))
        assert channel is not None
        channel.close()
        await network.destroy()
    assert (
        f"KV goes to decode worker {DECODE} over tcp, sealed; not over pool: not offered; not over shm: no "
        "/nowhere/rings here: another host, or a directory that is not shared (--kv-directory); not over ipc: not "
        "offered"
    ) in caplog.messages
