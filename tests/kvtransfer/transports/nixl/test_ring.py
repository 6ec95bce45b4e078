"""Rings that NIXL writes, over TCP on this host: their ends, and who may write and until when."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from infra.config.transfer import TransferConfig
from kvtransfer.transports.joining import transports
from kvtransfer.transports.nixl import agents as nixl_agents
from kvtransfer.transports.nixl.agents import NixlAgents, library_settings
from kvtransfer.transports.nixl.landings import NixlLanding, NixlLandings
from kvtransfer.transports.nixl.ring import NixlError, NixlRing
from tests.waiting import DEADLINE_S

RING_BYTES = 1 << 20
TOKEN = "0123456789abcdef" * 2
LISTENING = "0A"  # a state in /proc/net/tcp


@pytest.fixture
async def agents() -> AsyncIterator[NixlAgents]:
    made = NixlAgents("127.0.0.1")
    yield made
    await made.close()


class Ends:
    """A writer's ring and a reader's, connected."""

    def __init__(self, agents: NixlAgents) -> None:
        self.writer, self.reader = (NixlRing(agents, RING_BYTES) for _ in range(2))
        self.writer.connect(self.reader.description(), bytes.fromhex(TOKEN))

    def pass_on(self, offset: int, text: bytes) -> None:
        """Writes bytes, and returns when they are in the reader's ring. Raises `NixlError`."""
        at = 0
        for view in self.writer.views(offset, len(text)):
            view[:] = text[at : at + len(view)]
            at += len(view)
        there = self.writer.write([(offset, len(text))])
        end = time.monotonic() + DEADLINE_S
        while not there:
            assert time.monotonic() < end
            self.reader.progress()
            there = self.writer.write([])


async def test_a_payload_around_the_end_arrives_whole_and_alone(agents: NixlAgents) -> None:
    ends = await agents.call(Ends, agents)
    text = os.urandom(RING_BYTES // 2)
    await agents.call(ends.pass_on, 5 * RING_BYTES - 1000, text)
    assert len(ends.reader.views(5 * RING_BYTES - 1000, len(text))) == 2
    assert b"".join(ends.reader.views(5 * RING_BYTES - 1000, len(text))) == text
    assert not any(ends.reader.views(len(text) - 1000, RING_BYTES - len(text))[0])
    for ring in (ends.writer, ends.reader):
        await agents.call(ring.close)


async def test_nothing_writes_into_a_ring_that_is_closed(agents: NixlAgents) -> None:
    """Its memory is another's then: here a view keeps it, and shows that it stays as it was."""
    ends = await agents.call(Ends, agents)
    await agents.call(ends.pass_on, 0, b"before")
    kept = ends.reader.views(0, RING_BYTES)[0]
    began = await agents.call(ends.writer.write, [(0, RING_BYTES)])  # under way when the reader goes
    assert not began
    await agents.call(ends.reader.close)
    found = bytes(kept)

    def written() -> None:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            ends.writer.write([])

    with pytest.raises(NixlError):
        await agents.call(written)
    with pytest.raises(NixlError):
        await agents.call(ends.pass_on, 0, b"behind")
    assert bytes(kept) == found
    await agents.call(ends.writer.close)


@pytest.mark.parametrize("token", [TOKEN, TOKEN[::-1]])
async def test_a_landing_admits_a_writer_that_says_its_token(agents: NixlAgents, token: str) -> None:
    landings = NixlLandings(agents, lambda: True)
    landing = landings.begin(TOKEN, RING_BYTES)
    assert landing is not None
    while landing.memory is None:
        await asyncio.sleep(0)
    writer = await agents.call(NixlRing, agents, RING_BYTES)
    await agents.call(writer.connect, landing.memory, bytes.fromhex(token))
    there = await agents.call(writer.write, [(0, 100)])
    async with asyncio.timeout(DEADLINE_S):
        while not there:  # the token came before
            await asyncio.sleep(0)
            there = await agents.call(writer.write, [])
    landings.read_token(landing)
    assert landing.is_admitted == (token == TOKEN)
    await agents.call(writer.close)
    landings.close()


async def test_there_are_only_so_many_landings(agents: NixlAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtransfer.transports.nixl.landings.MAX_LANDINGS", 1)
    landings = NixlLandings(agents, lambda: False)
    first = landings.begin(TOKEN, RING_BYTES)
    assert isinstance(first, NixlLanding) and landings.begin(TOKEN, RING_BYTES) is None
    landings.end(first)  # while it is being made
    again = landings.begin(TOKEN, RING_BYTES)
    assert again is not None
    landings.close()


async def test_the_library_listens_where_the_worker_does(agents: NixlAgents) -> None:
    """UCX asks a visitor over TCP for nothing, so it must not be reachable from other hosts by default."""
    ring = await agents.call(NixlRing, agents, RING_BYTES)
    own = {os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if _is_open(each)}
    found = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        (
            _,
            local,
            _,
            state,
            *_,
        ) = line.split()[:4]
        if state == LISTENING and f"socket:[{line.split()[9]}]" in own:
            found.add(socket.inet_ntoa(bytes.fromhex(local.partition(":")[0])[::-1]))
    assert found == {"127.0.0.1"}
    await agents.call(ring.close)


def _is_open(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def test_an_address_of_no_interface_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.77"):
        library_settings("192.0.2.77")
    assert "UCX_NET_DEVICES" not in library_settings("0.0.0.0")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    with pytest.raises(
        ConfigError, match=r"--kv-transport: 'nixl': the package nixl is not installed: .* extra 'nixl'"
    ):
        NixlAgents("127.0.0.1")
    assert "nixl" not in transports(TransferConfig())


def test_auto_takes_it_where_this_host_has_rdma(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nixl_agents, "RDMA_DEVICES", tmp_path)
    assert transports(TransferConfig())[-2:] == ("ipc", "tcp")
    (tmp_path / "mlx5_0").mkdir()
    assert transports(TransferConfig())[-2:] == ("nixl", "tcp")
    assert transports(TransferConfig(kv_transport="tcp")) == ("tcp",)
