"""One end of a handoff in a process of its own, which a test may start in namespaces of its own, and kill.

It takes one order on each line of its standard input, and answers each with a line of JSON.
"""

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from kvtransfer.digest import copy_and_digest
from kvtransfer.events import BlocksWanted, Closed, HandoffOver, Landed
from kvtransfer.handoff import HandoffKey
from kvtransfer.protocol.decode_handoff import DecodeHandoffState
from kvtransfer.transports.pool.channel import PoolChannel
from tests.kvtransfer.pair import PREFILL, SPEC, Pair, until
from tests.kvtransfer.world import layer
from tests.network import SECRET

BLOCKS = list(range(1, 256))
MAX_HANDOFFS = 8  # at most


class LoneEnd(Pair):
    """One of a pair's two ends: the other one stays idle, and is never connected to."""

    def __init__(self, network: Network, config: TransferConfig) -> None:
        super().__init__(network, config)
        self.address = self.inbound.handoff_address
        self.blocks = dict.fromkeys(range(MAX_HANDOFFS), BLOCKS)  # of the other process's handoffs, too

    async def answer(self, order: str, number: int) -> dict[str, Any]:
        """Carries out an order about a handoff."""
        match order:
            case "address":
                return {"address": self.address}
            case "usage":
                status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
                room = os.statvfs("/dev/shm")
                return {
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "shared": 1024 * int(status["RssShmem"].split()[0]),
                    "room": (room.f_blocks * room.f_frsize, room.f_bfree * room.f_frsize),
                    "process": os.getpid(),
                }
            case "hold":
                self.granting = False
            case "open":
                self.open(number, BLOCKS, decode_address=self.address)
            case "granted":
                await until(lambda: not self.asking(), "no Grant comes")
            case "asked":
                await until(lambda: self.of(BlocksWanted), "no Open comes")
            case "compute":
                self.compute(number)
                sender = next(link.side.handoffs[number] for link in self.outbound._links.values())
                await until(lambda: sender.sent.count, "nothing leaves")
            case "commit":
                self.commit(number)
                await self.unpinned(number)
                transports = {link.side.transport for link in self.outbound._links.values()}
                return {"outcome": self.of(Closed)[-1].outcome, "over": [*transports], "bytes": self._digest(BLOCKS)}
            case "alone":
                if number:
                    await self.unpinned(number)
                await until(lambda: not self.outbound._links, "the link stays")
                await until(lambda: not self.inbound._sessions._by_link, "the session stays")
                assert not self.inbound.side.next_deadline(), "a handoff is not over"
            case "landed":
                await until(lambda: self.of(Landed), "nothing lands")
                return {"bytes": self._digest(self.reserved[HandoffKey(PREFILL, number)])}
            case "write":
                await until(lambda: self.out_granted(number), "the blocks are not told")
                asyncio.get_running_loop().call_soon(self._write_for_ever, number)
            case "cancel":
                key = HandoffKey(PREFILL, number)
                receiver = self.inbound.side.handoffs[key]
                self.inbound.handle(HandoffOver(key, "cancelled"))
                await until(lambda: receiver._repeat_at, "Abort is not repeated")
                first = receiver._repeat_at
                await until(lambda: receiver._repeat_at > first, "Abort is not repeated")
                is_kept = receiver.state is DecodeHandoffState.QUARANTINED
                return {"free": len(self.free), "quarantined": len(self.reserved.get(key, ())) if is_kept else 0}
            case "reuse":
                await until(lambda: len(self.free) == len(BLOCKS), "the blocks stay in quarantine")
                for array in self.target.arrays.values():
                    array[BLOCKS] = number
                return {"foreign": sum(int((array[BLOCKS] != number).sum()) for array in self.target.arrays.values())}
            case "release":
                self.free += self.reserved.pop(HandoffKey(PREFILL, number))
                self.in_events.clear()
        return {}

    def out_granted(self, number: int) -> tuple[list[int], ...]:
        """Returns the blocks that this sender may write, once it knows them."""
        return next((link.side.handoffs[number].granted for link in self.outbound._links.values()), ())

    def _write_for_ever(self, number: int) -> None:
        """Is in the middle of a payload until it is killed, and hears nothing."""
        (link,) = self.outbound._links.values()
        channel, (table,) = link.channel, self.out_granted(number)
        assert isinstance(channel, PoolChannel)
        header = layer(0, 0, 0, len(table), size=len(table) * SPEC.groups[0].block_bytes)
        views = self.source.read(0, 0, BLOCKS)
        while True:
            copy_and_digest(header, views, channel._runs(header, table))

    def _digest(self, blocks: list[int]) -> str:
        pool = self.source if blocks is BLOCKS else self.target
        return hashlib.sha256(b"".join(array[blocks].tobytes() for array in pool.arrays.values())).hexdigest()


async def run(config: TransferConfig, address: str) -> None:
    network = Network.of(SECRET)
    end = LoneEnd(network, config)
    end.address = address or end.address
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order, _, number = line.strip().partition(" ")
        print(json.dumps(await end.answer(order, int(number or 0))), flush=True)
    await network.destroy()


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=TransferConfig), sys.argv[2]))
