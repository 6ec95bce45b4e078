"""One gateway life: its parts, how they start, whether they are ready, and how they end."""

import asyncio
import logging
import time
from collections.abc import Iterator

import redis

from core.config import GatewayConfig
from core.ending import end
from core.errors import ModelError
from core.ids import SequenceKey, new_epoch, request_ids
from core.link_keys import LinkKeys
from core.queue import PURPOSE
from core.records import GatewayRecord, WorkerRecord
from core.registry import listed
from core.sealing import Sealer, load_secret
from core.slo import SLO
from core.status import StatusFile
from core.store import ServerClock, check, connect
from gateway.errors import unavailable
from gateway.reports.metrics import Metrics
from gateway.reports.publisher import Publisher
from gateway.requests.admission import Admission, Admitted
from gateway.requests.request import Group
from gateway.requests.sample import Request
from gateway.requests.stream import Stream
from gateway.requests.streams import Streams
from gateway.requests.tenant import Tenants
from gateway.text.model_files import locate
from gateway.text.stop import StopStrings
from gateway.text.tokenizer import ModelTokenizer
from gateway.workers.directory import Workers, short_name

LOAD_SECONDS = 3600.0  # s for tokenizer files, which may come from the hub
DRAIN_SECONDS = 2.0  # s that open answers get at a shutdown
STORE_SECONDS = 3.0  # s that Redis gets for an answer
log = logging.getLogger("baton.gateway")


class Gateway:
    """Made inside a running event loop. Raises `ConfigError` for a bad secret file or Redis URL."""

    def __init__(self, config: GatewayConfig, url: str, status: StatusFile) -> None:
        self.config = config
        self.model = config.model_name or _own_name(config.model)
        self.created = int(time.time())
        self.metrics: Metrics
        self.admission: Admission | None = None
        self._url = url
        self._status = status
        self._epoch = new_epoch()
        self._ids: Iterator[str] = request_ids(self._epoch)
        self._store = connect(config.store.redis)
        self._clock = ServerClock()
        self._tokenizer: ModelTokenizer
        self._draining = False
        self._tasks: list[asyncio.Task[None]] = []
        secret = load_secret(config.store.secret_file)
        self._tenants = Tenants(secret)
        self.streams = Streams(
            epoch=self._epoch,
            model=self.model,
            store=self._store,
            sealer=Sealer(secret, PURPOSE),
            clock=self._clock,
            slo=SLO(config.slo_ttft_ms, config.slo_tpot_ms),
            timeout=config.request_timeout,
            most=config.max_requests,
        )
        self.workers = Workers(
            self._store,
            self._clock,
            self._epoch,
            config.model,
            LinkKeys.of(secret),
            self.streams.received,
            self.streams.died,
        )
        self.metrics = Metrics(self.model, self.workers, self.streams.requests)
        self._publisher = Publisher(self._store, self._clock, self._record)
        self.streams.attach(self.workers, self.metrics, self._publisher.ended)

    async def start(self) -> None:
        """Loads the tokenizer and looks for workers. Raises `BatonError` in one sentence if that cannot work."""
        self._status.report("connecting to Redis", 10.0)
        await check(self._store, self.config.store.redis)
        await self._clock.sync(self._store)
        self._status.report("loading the tokenizer", 30.0)
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                self._tokenizer = await asyncio.to_thread(lambda: ModelTokenizer(locate(self.config.model)))
        except TimeoutError:
            raise ModelError(f"--model: {self.config.model!r} was not loaded within {LOAD_SECONDS:g} s") from None
        self.admission = Admission(
            self._tokenizer,
            self.model,
            self.config.max_model_len,
            self.config.max_requests,
            self.config.max_samples,
            self.streams,
            self.workers.context,
            self._tenants,
        )
        self._tasks = [
            asyncio.create_task(work) for work in (self.workers.run(), self.streams.run(), self._publisher.run())
        ]
        self._status.ready(self._url)
        log.info("ready: %s serves %s", self._url, self.model)

    async def watch(self) -> None:
        """Returns when one of its tasks fails, by raising what it raised."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def readiness(self) -> tuple[str, float]:
        """Stage and percentage of the start; `ready` when a request would be served."""
        if self._draining:
            return "shutting down", 100.0
        if self.admission is None:
            return self._status.now.stage, self._status.now.percent
        return ("ready", 100.0) if self.workers.ready() else ("waiting for workers", 90.0)

    def front(self) -> Admission:
        """Where requests come in. Raises `APIError` (503) while there is none."""
        if self._draining:
            raise unavailable("the server is shutting down", "shutting_down")
        if self.admission is None:
            stage, percent = self.readiness()
            raise unavailable(f"the server is starting: {stage}, {percent:.0f}%", "starting", 2.0)
        return self.admission

    async def open(self, admitted: list[Admitted], received: float, streaming: bool) -> list[Group]:
        """Queues these prompts with their samples, all or none. Raises `APIError`."""
        groups: list[Group] = []
        try:
            for one in admitted:
                groups.append(self._group(one, received, streaming))
                await self.streams.open(groups[-1])
        except BaseException:
            self.leave(groups)
            raise
        return groups

    def leave(self, groups: list[Group]) -> None:
        """Their client is gone, or has everything."""
        for group in groups:
            self.streams.leave(group)

    async def stats(self) -> list[WorkerRecord]:
        """What the workers say of themselves, in the order of their start. Raises `APIError` if Redis is away."""
        try:
            async with asyncio.timeout(STORE_SECONDS):
                records = await listed(self._store, WorkerRecord)
        except (redis.RedisError, OSError, TimeoutError):
            raise unavailable("the registry is out of reach", "registry_unavailable", 2.0) from None
        return sorted(records, key=lambda record: (record.started_at, record.epoch))

    async def drain(self) -> None:
        """Takes nothing new; answers that are not finished within a bound end with an error."""
        self._draining = True
        until = time.monotonic() + DRAIN_SECONDS
        while len(self.streams) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.streams.fail_all(unavailable("the server is shutting down", "shutting_down"))

    async def close(self) -> None:
        """Ends everything."""
        await end(self._tasks)
        if self.admission is not None:
            self.admission.close()
            await self._publisher.close()
        await self.workers.close()
        await self._store.aclose()

    def _group(self, admitted: Admitted, received: float, streaming: bool) -> Group:
        request = next(self._ids)
        keys = [SequenceKey(request, sample) for sample in range(admitted.samples)]
        return Group([self._stream(key, admitted, received, streaming) for key in keys])

    def _stream(self, key: SequenceKey, admitted: Admitted, received: float, streaming: bool) -> Stream:
        request = Request(
            key,
            admitted.prompt,
            admitted.sampling,
            admitted.limits,
            received + self.config.request_timeout,
            admitted.salt,
            admitted.priority,
        )
        stops = StopStrings(admitted.stops)
        return Stream(request, self._tokenizer.detokenizer(), stops, received, streaming, self.metrics)

    def _record(self) -> GatewayRecord:
        return GatewayRecord(
            epoch=self._epoch,
            url=self._url,
            model=self.model,
            started_at=float(self.created),
            slo_ttft_ms=self.config.slo_ttft_ms,
            slo_tpot_ms=self.config.slo_tpot_ms,
            requests=list(self.streams.records()),
        )


def _own_name(model: str) -> str:
    """A hub id stands for itself, a directory is called by its last part."""
    return model if model.count("/") == 1 and not model.startswith((".", "/", "~")) else short_name(model)
