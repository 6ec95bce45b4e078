"""Drives a `PrefillLink`: a control DEALER to one life of a decode worker, and a channel for payloads.

Only `_pump` sends, so messages leave in order, and payloads leave in order; one may overtake the other. A Join is among
the first messages; payloads wait for the Offer that answers it, an Open does not. Messages wait in `_outbox`, where a
repetition replaces the repeated message, so the handoffs bound its size. While a socket takes nothing (it is not
connected, or its queue is full), the pump retries after 1, 2, 4 … 20 ms. It does not poll for writing, because behind a
poll pyzmq queues every other send.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import zmq
import zmq.asyncio

from contracts.errors import MessageError
from contracts.messages.handoff import Abort, Aborted, Handoff, Join, Layer, Offer, decode_to_prefill
from contracts.messages.wire import Addressed, encode
from infra.network.sockets import send_now
from infra.process.tasks import Tasks
from kvtransfer.events import BlocksTaken, Closed, OpenHandoff, ToPrefillEngine, Unpinned
from kvtransfer.memory import DigestedCopy, KVMemory
from kvtransfer.payload_reader import PayloadReader
from kvtransfer.protocol.flow import HandoffRate
from kvtransfer.protocol.instructions import Instruction, Joined, Lost, Send
from kvtransfer.protocol.payloads import Payload
from kvtransfer.protocol.prefill_events import FrameDone, OfHandoff
from kvtransfer.protocol.prefill_handoff import PrefillHandoff
from kvtransfer.protocol.prefill_link import PrefillLink
from kvtransfer.transports.channel import Channel, SentPayload
from kvtransfer.transports.joining import Joining
from kvtransfer.transports.pool.channel import PoolChannel
from kvtransfer.transports.pool.device_channel import DevicePoolChannel
from kvtransfer.transports.shm.ring_socket import RingQueueFull
from kvtransfer.transports.watching import Watching

COMPUTING_POLL_S = 0.0005  # between two checks of blocks that a device still computes
COPYING_POLL_S = 0.0001  # between two checks of payloads that a device copies
FRAME_POLL_S = 0.005  # between two checks of frames that keep a closed handoff pinned
FRAME_TIMEOUT_S = 1.0  # after which the frames of a closed socket count as done
REASON_NOT_ADMITTED = "not_admitted"
"""Reason of handoffs on a link whose peer has not let this worker into its pool."""
REJOIN_REASONS = frozenset({"ended", "gap", "incomplete", "sender_silent", "unjoined"})
"""Reasons of ended handoffs that suggest that the peer has forgotten the link: a Join finds out."""
SENDS_PER_TURN = 16  # payloads or messages sent before other tasks have their turn
FIRST_RETRY_S, LAST_RETRY_S = 0.001, 0.02  # until a socket that took nothing is tried again


class LinkOwner(Protocol):
    """The owner of links, which is notified of their ends and of their handoffs."""

    def report(self, event: ToPrefillEngine) -> None:
        """Takes an event for the engine."""

    def lost(self, link: "PrefillLinkDriver") -> None:
        """Called once, when a link has closed its socket, before its handoffs end."""

    def joined(self, link: "PrefillLinkDriver") -> None:
        """Called when a link has a channel."""


class PrefillLinkDriver:
    """A link's socket, its outbox, and the frames that the socket may still read."""

    def __init__(
        self,
        side: PrefillLink,
        socket: zmq.asyncio.Socket,
        joining: Joining,
        memory: KVMemory,
        clock: Callable[[], float],
        owner: "LinkOwner",
        tasks: Tasks,
    ) -> None:
        self.side = side
        self.malformed = 0
        self.channel: Channel | None = None
        self._socket = socket
        self._joining = joining
        self._salt_halves: set[bytes] = set()  # the peer's salt halves, of this session and earlier sessions
        self._join_due = clock()
        self._next_try = 0.0  # time (s) until which Offers are dropped, because the queue for rings was full
        self._computing = False  # the next payload's blocks are still being computed by a device that sends no notice
        self._join_sent_at: float | None = None  # time (s) of the first unanswered Join
        self._views: tuple[Layer, list[memoryview]] | None = None  # a payload that the channel has not taken yet
        self.loss_reason = ""  # why the link was lost
        self.rate = HandoffRate()
        self._memory = memory
        self._reader = PayloadReader(memory)
        self._clock = clock
        self._owner = owner
        self._blocks: dict[int, list[list[int]]] = {}  # blocks of each open handoff, by KV group
        self._outbox: dict[tuple[type, int], Addressed] = {}  # (kind, handoff) -> waiting message, in order
        self._frames: deque[tuple[int, int, zmq.MessageTracker | DigestedCopy]] = deque()
        """Handoff, payload number, and the tracker that is done when the payload is not read any more; oldest first."""
        self._wake = asyncio.Event()
        self._lost_at: float | None = None
        self._retry = 0.0  # s; above 0 while the socket takes nothing
        self._watching = Watching(tasks, self._channel_ended)
        self.pump = tasks.start(self._pump())
        self.reader = tasks.start(self._read())

    def open(self, opened: OpenHandoff) -> None:
        """Starts a handoff. Raises `IllegalMove` if its number is in use."""
        self._blocks[opened.handoff] = list(opened.blocks)
        self._carry_out(self.side.open(opened, self._clock()))
        self._wake.set()

    def handle(self, event: OfHandoff | BlocksTaken) -> None:
        """Takes an event of the engine. Raises `IllegalMove` for an event that the handoff's state does not allow."""
        if isinstance(event, BlocksTaken):
            if (tables := self._blocks.get(event.handoff)) is not None:  # otherwise the handoff is over
                tables[event.group] = event.blocks
            return
        self._carry_out(self.side.handle(event, self._clock()))
        self._wake.set()

    @property
    def joined(self) -> bool:
        return bool(self._salt_halves)

    @property
    def payload_address(self) -> str:
        return self._joining.payload_address if self.channel is not None and self.channel.transport == "tcp" else ""

    def _channel_ended(self) -> None:
        admitted = not isinstance(self.channel, PoolChannel) or self.channel.is_open
        self.lose("connection_lost" if admitted else REASON_NOT_ADMITTED)

    def lose(self, reason: str) -> None:
        """Gives up a dead peer: closes the socket, then ends every handoff. `_pump` runs until no frame is read."""
        if self._lost_at is not None:
            return
        self._lost_at = self._clock()
        self.loss_reason = reason
        self._watching.watch(None)
        if self.channel is not None and not isinstance(self.channel, DevicePoolChannel):
            self.channel.close()
        self._socket.close(0)
        self._outbox.clear()
        self._retry = 0.0
        self._owner.lost(self)
        self._carry_out(self.side.lost(reason, self._clock()))
        self._wake.set()

    async def _pump(self) -> None:
        while self._lost_at is None or self._frames:
            self._wake.clear()
            self._tick()
            if self._lost_at is None and isinstance(self.channel, DevicePoolChannel):
                self.channel.announce()
            self._look_at_frames()
            sent = self._send_some()
            if sent == SENDS_PER_TURN:
                await asyncio.sleep(0)
            else:
                await self._sleep()
        if isinstance(self.channel, DevicePoolChannel):  # no copy is under way any more
            self.channel.close()

    def _tick(self) -> None:
        now = self._clock()
        if self._lost_at is not None:
            return
        if self._join_sent_at is not None and now >= self._join_sent_at + self._joining.silence:
            self.lose("peer_silent")
            return
        if now >= self._join_due:
            self._outbox[Join, 0] = self._joining.join
            self._join_sent_at = now if self._join_sent_at is None else self._join_sent_at
            self._join_due = now + self._joining.pause(joined=False)
        due = self.side.next_deadline()
        if due is not None and now >= due:
            self._carry_out(self.side.tick(now))

    def _send_some(self) -> int:
        """Sends messages first, then payloads while the window is open; returns how many the socket took.

        The sending methods return None if there is nothing to send, False if the socket took nothing.
        """
        for sent in range(SENDS_PER_TURN):
            if self._lost_at is not None:
                return sent
            taken = self._send_message() if self._outbox else self._send_payload()
            self._retry = min(LAST_RETRY_S, 2 * self._retry or FIRST_RETRY_S) if taken is False else 0.0
            if not taken:
                return sent
        return SENDS_PER_TURN

    def _send_message(self) -> bool | None:
        key, message = next(iter(self._outbox.items()))
        if self._is_held(message):
            return None
        if not send_now(self._socket, [encode(message)]):
            return False
        del self._outbox[key]
        return True

    def _send_payload(self) -> bool | None:
        self._computing = False
        turn = self.side.next_payload() if self.channel is not None else None
        if turn is None or self.channel is None:
            return None
        handoff, payload = turn
        header = self.side.header(handoff, payload)
        target_blocks = (
            handoff.granted[payload.group][payload.first : payload.first + payload.count] if handoff.granted else ()
        )
        try:
            if isinstance(self.channel, DevicePoolChannel):
                sent = self._copy(self.channel, handoff, payload, header, target_blocks)
            else:
                sent = self._read_and_send(self.channel, handoff, payload, header, target_blocks)
        except MessageError:
            self.lose("bad_grant")
            return None
        if self._computing:
            return None
        if sent is None:
            return False
        self._views = None
        self._carry_out(self.side.payload_taken(handoff, payload, sent.digest, self._clock()))
        if sent.tracker is None:
            self._carry_out(self.side.handle(FrameDone(handoff.number, header.number), self._clock()))
        else:
            self._frames.append((handoff.number, header.number, sent.tracker))
        return True

    def _read_and_send(
        self, channel: Channel, handoff: PrefillHandoff, payload: Payload, header: Layer, target_blocks: Sequence[int]
    ) -> SentPayload | None:
        if self._views is None or self._views[0] != header:
            self._computing = not self._begin_read(handoff, payload)
            if self._computing:
                return None
            self._views = (header, self._reader.finish())
            if (following := self.side.following(handoff, payload)) is not None:
                self._begin_read(*following)
        return channel.send(*self._views, target_blocks)

    def _copy(
        self,
        channel: DevicePoolChannel,
        handoff: PrefillHandoff,
        payload: Payload,
        header: Layer,
        target_blocks: Sequence[int],
    ) -> SentPayload | None:
        blocks = self._own_blocks(handoff, payload)
        self._computing = not self._memory.ready(payload.group, payload.layer, blocks)
        return None if self._computing else channel.copy(header, blocks, target_blocks)

    def _begin_read(self, handoff: PrefillHandoff, payload: Payload) -> bool:
        return self._reader.begin(handoff.number, payload, self._own_blocks(handoff, payload), handoff.form.codec)

    def _own_blocks(self, handoff: PrefillHandoff, payload: Payload) -> list[int]:
        return self._blocks[handoff.number][payload.group][payload.first : payload.first + payload.count]

    def _is_held(self, message: Addressed) -> bool:
        """Whether a message has to wait for copies: when the peer has heard of an end, it uses the blocks otherwise."""
        return isinstance(message, Abort | Aborted) and self._is_copying()

    def _is_copying(self) -> bool:
        return isinstance(self.channel, DevicePoolChannel) and (self.channel.is_copying or bool(self._frames))

    def _join(self, offer: Offer) -> None:
        """Opens the channel that an Offer allows. A new salt half means that the peer had forgotten the link."""
        now = self._clock()
        if now < self._next_try:
            return
        self._join_sent_at = None
        self._join_due = now + self._joining.pause(joined=True)
        if offer.nonce in self._salt_halves:  # a session's key is never reused
            return
        if isinstance(self.channel, PoolChannel):  # a link writes into one pool, once: no late Grant names its blocks
            self.lose("connection_lost")
            return
        if self.channel is not None:
            self._watching.watch(None)
            self.channel.close()
        try:
            self.channel = self._joining.channel(offer)
        except RingQueueFull:
            self.channel = None
            self._join_due = self._next_try = now + self._joining.pause(joined=False)
            return
        self._salt_halves.add(offer.nonce)
        if self.channel is None:
            self.lose("no_transport")
            return
        self.side.use_channel(self.channel.capacity, self.channel.frame)
        self.side.transport, self.side.sealed = self.channel.transport, self.channel.sealed
        self._watching.watch(self.channel)
        self._owner.joined(self)

    def _probe(self, probe: Layer) -> None:
        """Sends a probe after the sent payloads. If the channel is full, another probe follows soon."""
        if self.channel is not None and self._lost_at is None:
            self.channel.send(probe, ())

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(self._pause()):
                await self._wake.wait()
        except TimeoutError:
            return

    def _pause(self) -> float | None:
        """Returns the seconds to sleep unless woken; None: until woken."""
        pauses = [self._retry] if self._retry else []
        if self._computing:
            pauses.append(COMPUTING_POLL_S)
        if self._is_copying():
            pauses.append(COPYING_POLL_S)
        if self.side.pinned() or self._lost_at is not None:
            pauses.append(FRAME_POLL_S)
        if self._lost_at is None:
            due = self.side.next_deadline()
            pauses.append(max(0.0, (self._join_due if due is None else min(due, self._join_due)) - self._clock()))
        return min(pauses, default=None)

    def _look_at_frames(self) -> None:
        overdue = self._lost_at is not None and self._clock() > self._lost_at + FRAME_TIMEOUT_S
        while self._frames:
            handoff_number, number, tracker = self._frames[0]
            handoff = self.side.handoffs.get(handoff_number)
            copied = handoff is not None and number in handoff.sent.copied
            pinned = handoff is not None and (copied or number in handoff.sent.flying)
            if pinned and not tracker.done and (copied or not overdue):
                return
            self._frames.popleft()
            digest = None if isinstance(tracker, zmq.MessageTracker) else tracker.digest
            self._carry_out(self.side.handle(FrameDone(handoff_number, number, digest), self._clock()))

    async def _read(self) -> None:
        for number in itertools.count(1):
            if self._lost_at is not None:
                return
            self._receive(await self._socket.recv_multipart())
            self._wake.set()
            if number % SENDS_PER_TURN == 0:
                await asyncio.sleep(0)  # while messages are queued, reading them never suspends

    def _receive(self, frames: list[bytes]) -> None:
        try:
            message = decode_to_prefill(frames[0])
        except MessageError:
            self.malformed += 1
            return
        self._carry_out(self.side.receive(message, self._clock()))

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(Layer() as probe):
                    self._probe(probe)
                case Send(Handoff() as message):
                    if self._lost_at is None:
                        self._outbox[type(message), message.handoff] = message
                case Joined(offer):
                    self._join(offer)
                case Lost(reason):
                    self.lose(reason)
                case Closed():
                    if instruction.reason in REJOIN_REASONS:
                        self._join_due = self._clock()
                    self._reader.closed(instruction.handoff)
                    del self._blocks[instruction.handoff]
                    self._owner.report(instruction)
                case Unpinned():
                    self._owner.report(instruction)
                case _:
                    raise AssertionError(f"{type(instruction).__name__} is not for the prefill side")
