"""Tests links that break in part, are idle for long, or meet a peer of another host or of bad will."""

import math
import os
import socket
import tempfile
from pathlib import Path

import pytest
import zmq.asyncio
from msgspec.structs import replace

from contracts.errors import ConfigError
from contracts.kinds import Transport
from contracts.messages.handoff import Join, Offer, decode_to_prefill
from contracts.messages.wire import encode
from infra.config.transfer import TransferConfig
from infra.memory.shared_mapping import shared_memory
from infra.network.sockets import dealer, payload_dealer
from kvtransfer.digest import copy_and_digest
from kvtransfer.events import Closed, LayerReady
from kvtransfer.transports.joining import Joining
from kvtransfer.transports.payload_sockets import (
    DIRECTORY_PREFIX,
    RINGS_NAME,
    SOCKET_NAME,
    PayloadSockets,
    sweep,
)
from kvtransfer.transports.shm.ring import Ring
from kvtransfer.transports.shm.ring_socket import RingQueueFull, hand_over
from tests.kvtransfer.descriptors import open_files
from tests.kvtransfer.meddler import Meddler, drop
from tests.kvtransfer.pair import BLOCKS_OF_TWO_PAYLOADS, DECODE, PREFILL, QUICK, SPEC, Way, pair, quick, until
from tests.kvtransfer.world import layer
from tests.network import KEYS, guarded

GOOD = Offer(sender=DECODE, receiver=PREFILL, security="sealed", nonce=bytes(32), user="ab" * 16, token="cd" * 16)
NONSENSE = {
    "no way": GOOD,
    "a port that is none": replace(GOOD, tcp=-1),
    "a user that is none": replace(GOOD, tcp=9, user="nobody"),
    "no user": replace(GOOD, tcp=9, user=""),
    "a long path": replace(GOOD, ipc="ipc:///" + "x" * 5000),
    "a path with a zero": replace(GOOD, ipc="ipc:///a\0b"),
    "another's memory": replace(GOOD, shm="/proc/1/fd/0", ring=1 << 30),
    "a small ring": replace(GOOD, shm="/tmp", ring=1 << 10),
    "a directory for rings": replace(GOOD, shm="/tmp", ring=1 << 30),
    "another version": replace(GOOD, tcp=9, version=99),
}


def no_ring(user: bytes, token: bytes, descriptor: int) -> None:
    """Takes a ring where none arrives."""
    raise AssertionError("a ring arrived")


@pytest.mark.parametrize("offer", NONSENSE)
async def test_no_offer_ends_a_worker(offer: str) -> None:
    async with guarded() as network:
        joining = Joining(QUICK, (PREFILL, DECODE), network, SPEC, None, "tcp://127.0.0.1:9")  # type: ignore[arg-type]
        assert joining.channel(NONSENSE[offer]) is None


async def test_a_directory_that_cannot_be_entered_is_no_way(tmp_path: Path) -> None:
    """Root may enter all directories, and so becomes another user for a moment."""
    me = os.geteuid()
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / SOCKET_NAME).touch()
    closed.chmod(0)
    async with guarded() as network:
        joining = Joining(QUICK, (PREFILL, DECODE), network, SPEC, None, "tcp://127.0.0.1:9")  # type: ignore[arg-type]
        os.seteuid(me or 65534)
        try:
            assert joining.channel(replace(GOOD, ipc=f"ipc://{closed / SOCKET_NAME}")) is None
        finally:
            os.seteuid(me)
            closed.chmod(0o700)


@pytest.mark.parametrize("base", ["x" * 100, "missing"])
async def test_a_worker_does_without_a_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    directory = tmp_path / base
    if base != "missing":
        directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    async with guarded() as network:
        sockets = PayloadSockets(TransferConfig(), network, no_ring)
        assert list(sockets.sockets) == ["tcp"] and sockets.port and not (sockets.ipc or sockets.shm)
        sockets.close()
        for transport in ("ipc", "shm"):
            with pytest.raises(ConfigError, match=f"--kv-transport: '{transport}': no Unix socket"):
                PayloadSockets(TransferConfig(kv_transport=transport), network, no_ring)
        with pytest.raises(ConfigError, match=f"--kv-directory: '{directory}': no Unix socket"):
            PayloadSockets(TransferConfig(kv_directory=str(directory)), network, no_ring)
    assert base == "missing" or not list(directory.iterdir())


@pytest.mark.parametrize("transport", ["ipc", "shm"])
async def test_what_a_killed_worker_left_is_swept(tmp_path: Path, transport: Transport) -> None:
    dead, young = tmp_path / f"{DIRECTORY_PREFIX}dead", tmp_path / f"{DIRECTORY_PREFIX}young"
    for path in (dead, young):
        path.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(str(dead / RINGS_NAME))
    os.utime(dead, (0, 0))
    async with guarded() as network:
        sockets = PayloadSockets(TransferConfig(kv_transport=transport, kv_directory=str(tmp_path)), network, no_ring)
        mine = Path(sockets.shm or sockets.ipc.removeprefix("ipc://")).parent
        os.utime(mine, (0, 0))
        sweep(tmp_path)
        assert mine.exists() and young.exists() and not dead.exists()
        sockets.close()


async def test_another_way_is_taken_when_payloads_are_not_answered() -> None:
    """Control messages pass, so the peer lives; the pool, the best way, brings nothing."""
    async with pair({"kv_transport": "auto"}, QUICK) as both:
        link = await both.joined()
        assert link.channel is not None and link.channel.transport == "pool"
        Meddler(link, dict.fromkeys(range(1000), drop), probes=True)
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
        await both.unpinned(1)
        assert both.of(Closed)[1].reason == "incomplete"
        both.open(2, BLOCKS_OF_TWO_PAYLOADS)
        both.outbound.handle(LayerReady(2, 0, 0, 3))
        await both.unpinned(2)
        assert both.of(Closed)[2].reason in ("payloads_unanswered", "sender_silent")  # who notices first
        both.run(3, BLOCKS_OF_TWO_PAYLOADS)
        await both.unpinned(3)
        assert both.of(Closed)[3].outcome == "accepted" and both.equal(3)
        channel = both.outbound._links[DECODE].channel
        assert channel is not None and channel.transport == "shm"


@pytest.mark.parametrize(("drained", "taken"), [(True, "pool"), (False, "ipc")])
async def test_a_full_queue_of_rings_is_tried_once_more(drained: bool, taken: Transport) -> None:
    """As when more prefill workers join a decode worker at once than the system queues datagrams."""
    async with pair({"kv_transport": "auto"}, QUICK) as both:
        rings = both.inbound._payload_sockets.rings
        assert rings is not None
        rings._loop.remove_reader(rings._socket)
        descriptor = shared_memory("ring", 1 << 20)
        with pytest.raises(RingQueueFull):
            while True:
                hand_over(both.inbound._payload_sockets.shm, "ab" * 16, "cd" * 16, descriptor)
        os.close(descriptor)
        both.run(0, [200, 201])
        await until(lambda: both.outbound._links[DECODE]._next_try, "the link does not wait")
        link = both.outbound._links[DECODE]
        ((session, _),) = both.inbound._sessions._by_link.values()
        sockets, due, link._next_try = both.inbound._payload_sockets, link._next_try, math.inf
        link._join(session.offer(DECODE, sockets.port, sockets.ipc, sockets.shm))
        assert link.channel is None and not link.joined, "an Offer that comes too early is dropped"
        link._next_try = due
        if drained:
            rings._loop.add_reader(rings._socket, rings.receive)
        await both.unpinned(0)
        assert both.of(Closed)[0].outcome == "accepted" and both.equal(0)
        channel = both.outbound._links[DECODE].channel
        assert channel is not None and channel.transport == taken


async def test_a_peer_that_goes_while_its_link_is_idle_is_noticed(way: Way) -> None:
    async with pair(way, replace(QUICK, remember=1.0, silence=0.5)) as both:
        await both.joined()
        await both.inbound.close()
        await until(lambda: not both.outbound._links, "the link stays")


async def test_a_link_that_takes_another_ones_place_frees_its_session(way: Way) -> None:
    async with pair(way, quick(way)) as both:
        first = await both.joined()
        first.lose("a test")
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
        await both.unpinned(1)
        assert both.of(Closed)[1].outcome == "accepted" and len(both.inbound._sessions._by_link) == 1


async def test_sessions_of_links_that_are_gone_are_forgotten(way: Way) -> None:
    async with pair(way, replace(QUICK, remember=0.5)) as both:
        before = open_files()
        await both.joined()
        await both.kill_sender()
        await until(lambda: not both.inbound._sessions._by_link, "its session stays")
        await until(lambda: open_files() <= before, "a descriptor stays")


def test_nobody_can_take_a_rings_memory_away() -> None:
    descriptor = shared_memory("ring", 1 << 20)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    with pytest.raises(OSError, match="not shared memory of"):
        Ring(descriptor, 1 << 21)
    os.close(descriptor)


def test_memory_that_its_maker_could_take_away_is_no_ring(tmp_path: Path) -> None:
    descriptor = os.memfd_create("without seals", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 1 << 20)
    with pytest.raises(OSError, match="not shared memory of"):
        Ring(descriptor, 1 << 20)
    os.close(descriptor)
    with (tmp_path / "file").open("w+b") as file, pytest.raises(OSError, match="Invalid argument"):
        Ring(file.fileno(), 1 << 20)


def test_a_ring_goes_round() -> None:
    descriptor = shared_memory("ring", 100)
    ring = Ring(descriptor, 100)
    os.close(descriptor)
    text = bytes(range(90))
    for offset in (0, 60, 1 << 40):
        copy_and_digest(layer(0, 0, 0, 1), [memoryview(text)], ring.views(offset, 90))
        assert b"".join(ring.views(offset, 90)) == text
    assert len(ring.views(60, 90)) == 2
    ring.close()


async def test_nobody_sends_under_another_ones_name() -> None:
    """Who has joined is admitted to the payload socket, but cannot send for another, whatever its socket is called."""
    async with pair({"kv_transport": "auto"}, QUICK) as both:
        await both.joined()  # over shared memory, so that its name on the TCP socket is free
        ((victim, _),) = both.inbound._sessions._by_link.values()
        context = zmq.asyncio.Context()
        control = dealer(context, both.inbound.handoff_address, KEYS)
        join = Join(sender="evil", receiver=DECODE, transports=("tcp",), security="none", nonce=bytes(32))
        await control.send_multipart([encode(join)])
        offer = decode_to_prefill((await control.recv_multipart())[0])
        assert isinstance(offer, Offer)
        address = f"tcp://127.0.0.1:{offer.tcp}"
        liar = payload_dealer(context, address, bytes.fromhex(victim.user), offer.user, offer.token)
        await liar.send_multipart([bytes(12), encode(layer(0, 0, 0, 1)), bytes(100)])
        await until(lambda: both.inbound.refused["unknown user"] == 1, "it was taken for the victim's")
        assert both.inbound.refused.total() == 1
        for socket in (control, liar):
            socket.close(0)
        context.destroy(0)
        both.run(1, BLOCKS_OF_TWO_PAYLOADS)
        await both.unpinned(1)
        assert both.of(Closed)[1].outcome == "accepted" and both.equal(1)
