"""Runs both ends of the handoff in one process, over any transport: tests of the drivers start from here."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from msgspec.structs import replace

from contracts.kv.spec import KVGroup, KVSpec
from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from kvtransfer.decode_transfer import DecodeTransfer
from kvtransfer.events import (
    BlocksGranted,
    BlocksWanted,
    CommitHandoff,
    Dropped,
    Landed,
    LayerReady,
    OpenHandoff,
    ToDecodeEngine,
    ToPrefillEngine,
    Unpinned,
)
from kvtransfer.handoff import HandoffKey
from kvtransfer.prefill_link_driver import PrefillLinkDriver
from kvtransfer.prefill_transfer import PrefillTransfer
from kvtransfer.protocol.prefill_handoff import PrefillHandoffState
from kvtransfer.transports.nixl import channel as nixl_channel
from kvtransfer.transports.pool.channel import PAYLOADS_PER_FRAME
from kvtransfer.transports.shm.channel import FRAMES_PER_PAYLOAD
from tests.kvtransfer.array_pool import ArrayPool
from tests.kvtransfer.world import TOKENS, opened
from tests.network import SECRET
from tests.waiting import DEADLINE_S

LAYER_COUNT = 3
SPEC = KVSpec(groups=(KVGroup("full", tuple(range(LAYER_COUNT)), 16, 32 << 10),), layout="test", weights="none")
CONFIG = TransferConfig(frame=128 << 10, window=1 << 20)
PREFILL, DECODE = "prefill-1", "decode-1"
Way = dict[str, Any]
WAYS: dict[str, Way] = {
    "tcp, sealed": dict(kv_transport="tcp"),
    "tcp": dict(kv_transport="tcp", kv_security="none"),
    "ipc": dict(kv_transport="ipc"),
    "pool": dict(kv_transport="pool", frame=CONFIG.frame // PAYLOADS_PER_FRAME),
    "shm": dict(kv_transport="shm", frame=CONFIG.frame // FRAMES_PER_PAYLOAD),  # the same payloads as over the others
    "nixl": dict(kv_transport="nixl", frame=CONFIG.frame // nixl_channel.FRAMES_PER_PAYLOAD),
}
QUICK = TransferConfig(
    frame=128 << 10, window=1 << 20, repeat_ms=50, verify_deadline=0.3, silence=1.0, grant_deadline=1.0
)
"""Gives up soon."""
UNHURRIED = replace(QUICK, silence=4.0, grant_deadline=4.0, verify_deadline=1.0)
"""For connections that take longer to begin."""
BLOCKS_OF_TWO_PAYLOADS = [9, 3, 4, 5, 20, 21, 1, 30]
"""Blocks of a handoff with two payloads for each layer, where a frame is that of `QUICK`."""


def quick(way: Way) -> TransferConfig:
    return UNHURRIED if way["kv_transport"] == "nixl" else QUICK


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.002)


class Pair:
    """Runs a prefill and a decode side in one process, with an engine that grants at once unless told otherwise."""

    def __init__(self, network: Network, config: TransferConfig) -> None:
        is_shared = config.kv_transport in ("auto", "pool")
        self.source, self.target = ArrayPool(SPEC, 256, seed=1), ArrayPool(SPEC, 256, is_shared=is_shared)
        self.out_events: list[ToPrefillEngine] = []
        self.in_events: list[ToDecodeEngine] = []
        self.free = list(range(255, 0, -1))
        self.reserved: dict[HandoffKey, list[int]] = {}
        self.granting = True
        self.held = 0  # leading blocks that the decode side is given before it grants
        self.network = network
        self.config = config
        self.inbound = self.receiver(config)
        self.outbound = self.sender(config)
        self.blocks: dict[int, list[int]] = {}

    def receiver(self, config: TransferConfig, epoch: str = DECODE) -> DecodeTransfer:
        """Starts a decode side, on this host."""
        return DecodeTransfer(config, epoch, SPEC, self.target, self.network, self.on_inbound, trace=True)

    def sender(self, config: TransferConfig, epoch: str = PREFILL) -> PrefillTransfer:
        """Starts a prefill side."""
        return PrefillTransfer(config, epoch, SPEC, self.source, self.network, self.out_events.append, trace=True)

    def on_inbound(self, event: ToDecodeEngine) -> None:
        self.in_events.append(event)
        match event:
            case BlocksWanted(key, wanted) if self.granting:
                blocks = self.reserved[key] = [self.free.pop() for _ in range(-(-wanted.tokens // 16))]
                held, source = blocks[: self.held], self.blocks[key.handoff][: self.held]
                for place, array in self.target.arrays.items():
                    array[held] = self.source.arrays[place][source]
                self.inbound.handle(BlocksGranted(key, (blocks,), (len(held),)))
            case Dropped(key):
                self.free += self.reserved.pop(key, [])

    def opened(self, number: int, blocks: list[int], **changes: Any) -> OpenHandoff:
        """Makes the event with which the engine asks for a handoff of these blocks."""
        self.blocks[number] = blocks
        fields: dict[str, Any] = {"request": f"r{number}", "deadline": time.monotonic() + 60}
        fields |= {"decode_address": self.inbound.handoff_address}
        return opened(16 * len(blocks), handoff=number, blocks=(blocks,), **(fields | changes))

    def open(self, number: int, blocks: list[int], **changes: Any) -> None:
        self.outbound.handle(self.opened(number, blocks, **changes))

    def compute(self, number: int) -> None:
        for place in range(LAYER_COUNT):
            self.outbound.handle(LayerReady(number, 0, place, len(self.blocks[number])))

    def commit(self, number: int) -> None:
        self.outbound.handle(CommitHandoff(number, TOKENS.branches, TOKENS.stages, time.monotonic()))

    def asking(self) -> set[int]:
        """Lists the handoffs that wait for room."""
        return {number for number, state in self.states().items() if state is PrefillHandoffState.OPENING}

    def unclosed(self) -> set[int]:
        """Lists the handoffs that have not ended on the prefill side."""
        return {number for number, state in self.states().items() if state is not PrefillHandoffState.CLOSED}

    def states(self) -> dict[int, PrefillHandoffState]:
        """Tells where each handoff stands on the prefill side, until nothing of it can be read."""
        sides = [link.side for link in self.outbound._links.values()]
        return {number: sender.state for side in sides for number, sender in side.handoffs.items()}

    def run(self, number: int, blocks: list[int]) -> None:
        self.open(number, blocks)
        self.compute(number)
        self.commit(number)

    def of(self, kind: type) -> list[Any]:
        return [event for event in [*self.out_events, *self.in_events] if isinstance(event, kind)]

    async def joined(self) -> PrefillLinkDriver:
        """Returns the link, after a first handoff has passed: its channel is open."""
        self.run(0, [200, 201])
        await self.unpinned(0)
        link = self.outbound._links[DECODE]
        assert link.channel is not None
        return link

    async def unpinned(self, *numbers: int) -> None:
        await until(lambda: {e.handoff for e in self.of(Unpinned)} >= set(numbers), f"{numbers} stay pinned")

    def order(self, number: int) -> list[int]:
        """Tells at which place, among all that landed, this handoff did."""
        return [at for at, event in enumerate(self.of(Landed)) if event.key.handoff == number]

    async def kill_sender(self) -> None:
        """Closes the prefill side's sockets without a word to the other side."""
        for link in self.outbound._links.values():
            for task in (link.pump, link.reader):
                task.cancel()
            await asyncio.gather(link.pump, link.reader, return_exceptions=True)
            if link.channel is not None:
                link.channel.close()
            link._socket.close(0)
        self.outbound._links.clear()

    def equal(self, number: int) -> bool:
        target = self.reserved[HandoffKey(PREFILL, number)]
        return all(
            np.array_equal(self.source.arrays[place][self.blocks[number]], self.target.arrays[place][target])
            for place in self.source.arrays
        )


@asynccontextmanager
async def pair(way: Way, config: TransferConfig = CONFIG) -> AsyncIterator[Pair]:
    network = Network.of(SECRET)
    both = Pair(network, replace(config, **way))
    try:
        yield both
        for part in (both.outbound, both.inbound):
            if part._tasks.error is not None:
                raise part._tasks.error
        await both.outbound.close()
        await both.inbound.close()
    finally:
        await network.destroy()  # never waits for a socket that a failed test left open
