"""The decode side's driver: one ROUTER for every prefill worker. Runs on the I/O thread's asyncio loop."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq
import zmq.asyncio

from core.config import TransferConfig
from core.errors import MessageError
from core.ids import SequenceKey
from core.kvspec import KVSpec
from core.link_keys import LinkKeys
from core.messages import ToDecode, decode_to_decode, encode
from core.sockets import ipc_router, router, send_now
from kvtransfer.arrivals import Arrivals
from kvtransfer.digest import block_digests
from kvtransfer.memory import KVMemory
from kvtransfer.moves import Dropped, HandoffKey, InboundEvent, Instruction, Land, Landed, Send, Wanted
from kvtransfer.receiver import Declined, Granted, Over

BATCH = 16  # messages handled before credit is sent and other tasks have their turn
PEERS = 1024  # links whose malformed messages are counted apart
LEAST_SLEEP = 0.001  # seconds
IPC = "ipc://"


class Inbound:
    """Reports `Wanted`; lands the bytes of what is granted; reports `Landed` or `Dropped`. `host` may be `ipc://path`."""

    def __init__(
        self,
        config: TransferConfig,
        epoch: str,
        spec: KVSpec,
        memory: KVMemory,
        context: zmq.asyncio.Context,
        keys: LinkKeys,
        host: str,
        events: Callable[[InboundEvent], None],
        *,
        trace: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.side = Arrivals(config, epoch, spec, trace)
        self._config = config
        self._spec = spec
        self._memory = memory
        self._events = events
        self._clock = clock
        self._path = Path(host.removeprefix(IPC)) if host.startswith(IPC) else None
        if self._path is None:
            self._socket, self.address = router(context, host, keys)
        else:
            self._socket, self.address = ipc_router(context, self._path, keys)
        self.handoffs_landed = 0
        self.payloads_landed = 0
        self.bytes_landed = 0  # KV that was moved here and not computed here
        self.undelivered = 0  # answers that the peer's queue did not take; the peer will ask again
        self.malformed: dict[bytes, int] = {}  # by link
        self._wake = asyncio.Event()
        self._idle = True  # the time keeper sleeps without end
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises what a task of ours has died of; await it beside the I/O thread's other tasks."""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._keep_time())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def granted(self, key: HandoffKey, blocks: tuple[list[int], ...], held: int) -> None:
        """The engine has reserved all of a wanted handoff's blocks, per group; the first `held` hold their KV already.

        If the handoff is over meanwhile, its `Dropped` is under way.
        """
        self._own(self.side.handle(key, Granted(blocks, held), self._clock()))

    def refuse(self, key: HandoffKey, reason: str, message: str, retryable: bool) -> None:
        """The engine will not grant a wanted handoff. No further event comes for it."""
        self._own(self.side.handle(key, Declined(reason, message, retryable), self._clock()))

    def cancel(self, request: str, sample: int, attempt: int) -> None:
        """Attempts up to `attempt` are dead, those too that have still to arrive."""
        self._own(self.side.cancel(SequenceKey(request, sample), attempt, self._clock()))

    def knows(self, request: str, sample: int, attempt: int) -> bool:
        """Whether a handoff of this attempt waits, lands, or has landed here."""
        return self.side.knows(SequenceKey(request, sample), attempt)

    def finished(self, key: HandoffKey) -> None:
        """The landed sequence has ended; nothing more will be reported about it."""
        self._own(self.side.handle(key, Over("finished"), self._clock()))

    def drain(self) -> None:
        """Refuse new handoffs; those that were opened go on."""
        self.side.drain()

    async def close(self) -> None:
        """Closes the socket; open handoffs are left to the senders, who will miss us."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close(0)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def _read(self) -> None:
        while True:
            self._receive(await self._socket.recv_multipart(copy=False))
            for _ in range(BATCH - 1):
                try:
                    frames = await self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                self._receive(frames)
            self._carry_out(self.side.credits())
            if self._idle:
                self._wake.set()
            await asyncio.sleep(0)

    async def _keep_time(self) -> None:
        while True:
            self._wake.clear()
            self._carry_out(self.side.tick(self._clock()))
            due = self.side.next_deadline()
            self._idle = due is None
            # What arrives meanwhile is due after verify_deadline at the earliest, so it need not wake us.
            longest = self._config.verify_deadline
            pause = None if due is None else min(longest, max(LEAST_SLEEP, due - self._clock()))
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _receive(self, frames: list[zmq.Frame]) -> None:
        link = frames[0].bytes
        try:
            message: ToDecode = decode_to_decode(frames[1].buffer if len(frames) > 1 else b"")
        except MessageError:
            if link in self.malformed or len(self.malformed) < PEERS:
                self.malformed[link] = self.malformed.get(link, 0) + 1
            return
        payload = [frame.buffer for frame in frames[2:]]
        sizes = tuple(len(part) for part in payload)
        for move in self.side.receive(link, message, sizes, self._clock()):
            self._carry_out(self._land(move, payload) if isinstance(move, Land) else [move])

    def _land(self, land: Land, payload: list[memoryview]) -> Sequence[Instruction]:
        header = land.header
        self._memory.write(header.group, header.layer, land.blocks, payload)
        self.payloads_landed += 1
        self.bytes_landed += header.size
        block_bytes = self._spec.groups[header.group].block_bytes
        digests = block_digests(header.group, header.layer, header.first, block_bytes, payload)
        return self.side.landed(land, digests, self._clock())

    def _own(self, instructions: Sequence[Instruction]) -> None:
        """An event of the own worker may have changed what is waited for."""
        self._carry_out(instructions)
        self._wake.set()

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for move in instructions:
            match move:
                case Send(message, link):
                    self.undelivered += not send_now(self._socket, [link, encode(message)])
                case Wanted() | Landed() | Dropped():
                    self.handoffs_landed += isinstance(move, Landed)
                    self._events(move)
                case _:
                    raise AssertionError(f"{type(move).__name__} is not for the decode side")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)
