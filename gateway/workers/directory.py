"""All workers that this gateway knows: found in Redis, connected, watched, and dropped when they are dead."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

import redis
import zmq.asyncio

from core.link_keys import LinkKeys
from core.messages import FromWorker
from core.records import WorkerRecord
from core.registry import listed
from core.store import ServerClock, Store
from gateway.workers.connection import Link
from gateway.workers.liveness import Health

POLL_EVERY = 0.5  # s
LOOK_EVERY = 0.05  # s
SYNC_EVERY = 10.0  # s between measurements of the server's clock
STORE_SECONDS = 3.0  # s that Redis gets for an answer
BURIED_SECONDS = 10.0  # s for which a dead life is not looked at again
log = logging.getLogger("baton.gateway")


def short_name(model: str) -> str:
    """The last part of a directory or a hub id: the same model may lie in different places on different hosts."""
    return model.rstrip("/").rpartition("/")[2]


class Workers:
    """The links, by the worker's epoch. `receive` gets the workers' messages, `died` every death."""

    def __init__(
        self,
        store: Store,
        clock: ServerClock,
        epoch: str,
        model: str,
        keys: LinkKeys,
        receive: Callable[[Link, FromWorker], None],
        died: Callable[[Link], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._epoch = epoch
        self._model = short_name(model)
        self._keys = keys
        self._receive = receive
        self._died = died
        self._context = zmq.asyncio.Context(io_threads=1)
        self._links: dict[str, Link] = {}
        self._buried: dict[str, float] = {}  # until when
        self._refused: set[str] = set()  # lives with another model, named once
        self._synced = 0.0
        self._closing: set[asyncio.Task[None]] = set()
        self.store_away = False

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def get(self, epoch: str) -> Link | None:
        """The link to this life, unless it is dead."""
        return self._links.get(epoch)

    def ready(self) -> bool:
        """Whether any request could be served."""
        return any(link.usable and link.record.role == "decode" and not link.record.draining for link in self)

    def context(self) -> int:
        """The shortest limit on prompt + answer among the workers, or 0."""
        return min((link.record.max_model_len for link in self if link.record.max_model_len), default=0)

    async def run(self) -> None:
        """Polls and watches until cancelled."""
        await asyncio.gather(self._poll_for_ever(), self._look_for_ever())

    async def close(self) -> None:
        """Closes every socket."""
        await asyncio.gather(*(link.close() for link in self), *self._closing)
        self._links.clear()
        self._context.term()

    async def poll(self) -> None:
        """One look into the registry. Raises what redis raises, or TimeoutError."""
        async with asyncio.timeout(STORE_SECONDS):
            if time.monotonic() - self._synced > SYNC_EVERY or not self._synced:
                await self._clock.sync(self._store)
                self._synced = time.monotonic()
            records = await listed(self._store, WorkerRecord)
        self._update({record.epoch: record for record in records if self._fits(record)})

    def look(self) -> None:
        """One look at every link's health."""
        now = time.monotonic()
        for link in self:
            link.look(now)
            if link.liveness.health is Health.DEAD:
                log.warning("%s worker %s is dead", link.record.role, link.epoch)
                self._bury(link, now)

    async def _poll_for_ever(self) -> None:
        while True:
            try:
                await self.poll()
                self.store_away = False
            except (redis.RedisError, OSError, TimeoutError) as error:
                if not self.store_away:  # nobody is dead because Redis is away
                    log.warning("Redis is away: %s", error or type(error).__name__)
                self.store_away = True
            await asyncio.sleep(POLL_EVERY)

    async def _look_for_ever(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY)

    def _update(self, records: dict[str, WorkerRecord]) -> None:
        now = time.monotonic()
        self._buried = {epoch: until for epoch, until in self._buried.items() if until > now}
        for epoch, record in records.items():
            link = self._links.get(epoch)
            if link is not None:
                link.renew(record)
            elif epoch not in self._buried:
                log.info("found %s worker %s at %s", record.role, epoch, record.address)
                self._links[epoch] = Link(self._context, self._keys, self._epoch, record, self._receive)
        for link in self:
            link.liveness.beating = link.epoch in records

    def _fits(self, record: WorkerRecord) -> bool:
        if short_name(record.model) == self._model:
            return True
        if record.epoch not in self._refused:
            self._refused.add(record.epoch)
            log.warning("worker %s serves %r and not %r; it is not used", record.epoch, record.model, self._model)
        return False

    def _bury(self, link: Link, now: float) -> None:
        del self._links[link.epoch]
        self._buried[link.epoch] = now + BURIED_SECONDS
        closing = asyncio.create_task(link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._died(link)
