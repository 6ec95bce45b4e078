"""A prefill worker's GPU copies KV into a decode worker's pool: both drivers on a simulated GPU, over real sockets.

What touches a block is in order, whatever ends early, and no host waits for a GPU. One host stands for those of both
workers: it knows what one of them has learned, so only what is left out for both of them shows.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from transformers import LlamaConfig

from contracts.ids import AttemptKey
from contracts.messages.handoff import Abort
from engine.start.load import LoadedEngine
from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from kvtransfer.decode_transfer import DecodeTransfer
from kvtransfer.events import (
    AbortHandoff,
    BlocksGranted,
    BlocksWanted,
    CancelAttempt,
    CommitHandoff,
    Dropped,
    Landed,
    LayerReady,
    Unpinned,
)
from kvtransfer.prefill_link_driver import PrefillLinkDriver
from kvtransfer.prefill_transfer import PrefillTransfer
from kvtransfer.protocol.decode_handoff import DecodeHandoff
from kvtransfer.transports.pool.device_channel import DevicePoolChannel
from tests.engine.kv.peer_memory import UNREACHED, UNSHARED, shared_on_device
from tests.engine.simulated_device import SimulatedDevice
from tests.engine.simulated_torch import simulated_device
from tests.engine.test_stream_order import Worker, decode, load, prompt
from tests.kvtransfer.pair import until
from tests.kvtransfer.world import DECODE, PREFILL, TOKENS, opened
from tests.network import SECRET
from tests.variants import SIZES

pytestmark = pytest.mark.interpreted
SENT, LANDING = [1, 2], [3, 4]
"""Blocks of the prompt in either pool."""
LOOK_COUNT = 50
"""Looks of a host until it finds that a GPU has done something: messages take less time."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedEngine:
    return load(tmp_path_factory.mktemp("handoffs"), LlamaConfig(**{**SIZES, "num_hidden_layers": 1}))


class Handoffs:
    """Both workers, and what their engines do with the blocks that are theirs again."""

    def __init__(
        self, loaded: LoadedEngine, device: SimulatedDevice, network: Network, transport: Literal["auto", "pool"]
    ) -> None:
        self.device = device
        self.streams = {"prefill": device.current, "decode": device.make_stream()}
        self.workers: dict[str, Worker] = {}
        for name, stream in self.streams.items():
            with device.on(stream):
                self.workers[name] = Worker(loaded, device, signals=True)
            size = self.workers[name].pool.spec.groups[0].block_bytes
            device.in_cells(self.workers[name].pool.layers[0], size, f"the {name} worker's pool")
        self.events: list[Any] = []
        self.then: Callable[[], None] = lambda: None  # what follows the end of a handoff at once
        spec, config = self.workers["prefill"].pool.spec, TransferConfig(kv_transport=transport, silence=30.0)
        memory = {name: worker.pool for name, worker in self.workers.items()}
        self.inbound = DecodeTransfer(config, DECODE, spec, memory["decode"], network, self.heard)
        self.outbound = PrefillTransfer(config, PREFILL, spec, memory["prefill"], network, self.heard)

    def on(self, name: str, act: Callable[[Worker], object]) -> None:
        """Has a worker's engine do something."""
        with self.device.on(self.streams[name]):
            act(self.workers[name])

    def heard(self, event: Any) -> None:
        self.events.append(event)
        match event:
            case BlocksWanted(key):
                self.inbound.handle(BlocksGranted(key, (LANDING,), (0,)))
            case Dropped() | Landed() | Unpinned():
                self.then()

    def has(self, kind: type) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    @property
    def link(self) -> PrefillLinkDriver:
        (found,) = {*self.outbound._links.values(), *self.outbound._closing}
        return found

    async def joined(self) -> None:
        """Opens a handoff, until its link has a channel."""
        fields: dict[str, Any] = {"decode_address": self.inbound.handoff_address, "deadline": time.monotonic() + 60}
        self.outbound.handle(opened(16, blocks=(SENT,), **fields))
        await until(lambda: self.link.channel, "no channel")

    async def copying(self) -> None:
        """Begins a handoff of what a step computes, until it is being copied, or has been: a look may come too late."""
        self.on("prefill", lambda worker: worker.launch(prompt(1, SENT, 9)))
        await self.joined()
        self.outbound.handle(LayerReady(1, 0, 0, 2))
        channel = self.link.channel
        assert isinstance(channel, DevicePoolChannel)
        await until(lambda: channel.is_copying or self.link.side.handoffs[1].sent.count, "no copy")

    async def close(self) -> None:
        self.device.looks = 1
        await self.outbound.close()
        await self.inbound.close()
        self.device.synchronize()
        for task in (self.outbound, self.inbound):
            if task._tasks.error is not None:
                raise task._tasks.error


@asynccontextmanager
async def handoffs(
    loaded: LoadedEngine, device: SimulatedDevice, transport: Literal["auto", "pool"] = "pool"
) -> AsyncIterator[Handoffs]:
    network = Network.of(SECRET)
    try:
        both = Handoffs(loaded, device, network, transport)
        yield both
        await both.close()
    finally:
        await network.destroy()


async def the_answer_goes_on(both: Handoffs) -> None:
    """Blocks that were just moved are granted; the answer runs at once, and the prompt's blocks are used again."""
    both.on("decode", lambda worker: worker.launch(decode(7, [5], 3)))
    both.on("decode", lambda worker: worker.copy(LANDING[1], 6))

    def then() -> None:
        if isinstance(both.events[-1], Landed):
            both.on("decode", lambda worker: worker.launch(decode(1, LANDING, 9)))
        elif isinstance(both.events[-1], Unpinned):
            both.on("prefill", lambda worker: worker.launch(prompt(2, SENT[:1], 2)))

    both.then = then
    await both.copying()
    both.outbound.handle(CommitHandoff(1, TOKENS.branches, TOKENS.stages, 0.0))
    await until(lambda: both.has(Landed) and both.has(Unpinned), "nothing landed")


async def the_sender_gives_up(both: Handoffs) -> None:
    """The decode worker's blocks go to another text as soon as it hears of that."""
    await given_up(both, lambda worker: worker.launch(prompt(2, LANDING[:1], 2)))


async def blocks_given_up_are_moved(both: Handoffs) -> None:
    """A move writes into the decode worker's blocks as soon as it hears of that."""
    await given_up(both, lambda worker: worker.copy(5, LANDING[0]))


async def given_up(both: Handoffs, use: Callable[[Worker], object]) -> None:
    def then() -> None:
        if isinstance(both.events[-1], Dropped):
            both.on("decode", use)

    both.then = then
    await both.copying()
    both.outbound.handle(AbortHandoff(1, "cancelled"))
    await until(lambda: both.has(Dropped), "the decode worker keeps its blocks")


async def the_receiver_gives_up(both: Handoffs) -> None:
    """A move writes into its blocks as soon as the sender has answered."""

    def then() -> None:
        if isinstance(both.events[-1], Dropped):
            both.on("decode", lambda worker: worker.copy(5, LANDING[0]))

    both.then = then
    await both.copying()
    both.inbound.handle(CancelAttempt(AttemptKey("r", 0, 1)))
    await until(lambda: both.has(Dropped), "the decode worker keeps its blocks")


async def the_link_is_lost(both: Handoffs) -> None:
    """The prompt's blocks go to another text as soon as nothing reads them any more."""

    def then() -> None:
        if isinstance(both.events[-1], Unpinned):
            both.on("prefill", lambda worker: worker.launch(prompt(2, SENT[:1], 2)))

    both.then = then
    await both.copying()
    both.link.lose("connection_lost")
    await until(lambda: both.has(Unpinned), "the prefill worker keeps its blocks")


Scene = Callable[[Handoffs], Awaitable[None]]
SCENES: list[Scene] = [
    the_answer_goes_on,
    the_sender_gives_up,
    blocks_given_up_are_moved,
    the_receiver_gives_up,
    the_link_is_lost,
]


Patches = dict[str, Callable[..., Any]]


def races(
    loaded: LoadedEngine, scene: Scene, forgotten: tuple[str, str] = ("", ""), patches: Patches | None = None
) -> list[str]:
    """What nothing puts in order in a scene, where a function leaves out a kind of wait or look, or is replaced."""

    async def run(device: SimulatedDevice) -> None:
        async with handoffs(loaded, device) as both:
            waits = device.waits
            await scene(both)
            assert device.waits == waits, "a host waits for a GPU"

    with simulated_device() as device, shared_on_device(), pytest.MonkeyPatch.context() as patch:
        for name, replacement in (patches or {}).items():
            patch.setattr(name, replacement)
        device.looks, device.forgotten = LOOK_COUNT, forgotten
        asyncio.run(run(device))
    return device.races


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_nothing_races_and_no_host_waits(scene: Scene, loaded: LoadedEngine) -> None:
    assert races(loaded, scene) == []


def ended_at_once(handoff: DecodeHandoff, reason: str) -> list[Any]:
    """Frees blocks without a quarantine."""
    return [*handoff._end(reason), handoff._message(Abort, reason=reason)]


NO_READINESS: Patches = {"engine.kv.pool.KVPool.ready": lambda *_: True}
NOTHING_IS_HELD: Patches = {"kvtransfer.prefill_link_driver.PrefillLinkDriver._is_held": lambda *_: False}
NO_QUARANTINE: Patches = {"kvtransfer.protocol.decode_handoff.DecodeHandoff._fail": ended_at_once}
SENDERS, RECEIVERS = "the prefill worker's pool", "the decode worker's pool"


@pytest.mark.parametrize(
    ("scene", "forgotten", "patches", "found"),
    [
        (the_answer_goes_on, ("wait_event", "digested_read"), NO_READINESS, SENDERS),
        (the_answer_goes_on, ("query", "ended"), {}, "unordered with _copy_words"),
        (the_answer_goes_on, ("query", "announce"), {}, RECEIVERS),
        (the_answer_goes_on, ("query", "_look_at_frames"), {}, "is read by item on host"),
        (the_answer_goes_on, ("query", "is_known"), {}, "is read by item on host"),
        (the_sender_gives_up, ("query", "ended"), {}, "unordered with zeros"),
        (the_sender_gives_up, ("wait_event", "begin_step"), {}, "is written by _rope_and_store"),
        (blocks_given_up_are_moved, ("wait_event", "begin_moves"), {}, "is written by _copy_words"),
        (the_sender_gives_up, ("", ""), NOTHING_IS_HELD, RECEIVERS),
        (the_receiver_gives_up, ("", ""), NOTHING_IS_HELD, RECEIVERS),
        (the_receiver_gives_up, ("", ""), NO_QUARANTINE, RECEIVERS),
        (the_link_is_lost, ("query", "_look_at_frames"), {}, SENDERS),
    ],
)
def test_an_order_that_is_left_out_shows(
    scene: Scene, forgotten: tuple[str, str], patches: Patches, found: str, loaded: LoadedEngine
) -> None:
    assert any(found in race for race in races(loaded, scene, forgotten, patches))


def test_a_copy_waits_for_the_step_that_fills_its_blocks(loaded: LoadedEngine) -> None:
    """The host looks first whether they are filled, so that other payloads leave before; the GPU does not need it."""
    assert races(loaded, the_answer_goes_on, patches=NO_READINESS) == []


@pytest.mark.parametrize(
    ("shared", "reached", "how"),
    [
        (True, True, "pool, not sealed"),
        (True, False, f"shm, not sealed; not over pool: {UNREACHED}"),
        (False, False, "shm, not sealed; not over pool: not offered"),
    ],
)
def test_the_pool_is_taken_where_the_gpu_reaches_it_and_a_line_says_so(
    shared: bool, reached: bool, how: str, loaded: LoadedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async def chosen(device: SimulatedDevice) -> str:
        async with handoffs(loaded, device, "auto") as both:
            await both.joined()
            assert both.link.channel is not None
            return both.link.channel.transport

    caplog.set_level("INFO", "baton.handoff")
    with simulated_device() as device, shared_on_device(shared=shared, reached=reached):
        assert asyncio.run(chosen(device)) == ("pool" if reached else "shm")
    (line,) = [line for line in caplog.messages if line.startswith("KV goes to")]
    assert line == f"KV goes to decode worker {DECODE} over {how}"
    assert any(line.endswith(UNSHARED) for line in caplog.messages) is not shared
