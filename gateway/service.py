"""Makes the parts of one gateway life, starts them, reports their readiness, and ends them."""

import asyncio
import logging
import time
from collections.abc import Iterator
from functools import partial

from contracts.errors import ModelError, StoreUnavailable
from contracts.ids import new_epoch, request_ids
from contracts.served_names import served_names
from contracts.slo import Objective, parse_objective
from gateway.adapters import AdapterLoading
from gateway.errors import APIError, unavailable
from gateway.grammar.checks import GrammarChecks
from gateway.keys.callers import Callers
from gateway.keys.limiter import Limiter
from gateway.metrics.gateway_metrics import Metrics
from gateway.metrics.ownership import PageOwner
from gateway.openai.admission import PromptAdmission
from gateway.reports.publisher import Publisher
from gateway.reports.refusals import Refusals
from gateway.reports.traces import open_traces
from gateway.requests.dispatch import Dispatch
from gateway.requests.end_reports import EndReports
from gateway.requests.holdings import Holdings
from gateway.requests.open_requests import OpenRequests
from gateway.requests.sample import Sample
from gateway.requests.stream import Stream
from gateway.requests.tenant import Tenants
from gateway.requests.unloaded import IdleTime, UnloadedModel
from gateway.responses.conversations import Conversations
from gateway.text.model_files import locate_files
from gateway.text.tokenizer import ModelTokenizer
from gateway.workers.connection import WorkerConnection
from gateway.workers.directory import WorkerDirectory
from gateway.workers.discovery import Discovery, short_name
from infra.config.gateway import GatewayConfig
from infra.keys.key_ring import CHECK_INTERVAL_S, KeyRing
from infra.network.curve_keys import CurveKeys
from infra.network.sealing import Sealer, Signer, load_secret
from infra.process.status import StatusFile
from infra.process.tasks import Tasks
from infra.redis.clients import connect
from infra.redis.queue import JOB_PURPOSE, add_job
from infra.redis.rates import RateStore
from infra.redis.records import GatewayRecord, RunMark, WorkerRecord
from infra.redis.registry import RECORD_PURPOSE as RECORDS
from infra.redis.registry import RecordType, listed
from infra.redis.store import Outage, ServerClock, check, until_answered
from infra.redis.stored import TenantStore

LOAD_TIMEOUT_S = 3600.0  # s for tokenizer files, which may come from the hub
log = logging.getLogger("baton.gateway")


class Gateway:
    """One gateway life. Its parts are made here, each from earlier parts, inside a running event loop.

    Raises `ConfigError` for a bad secret file, key file, objective, name, Redis URL or trace endpoint.
    """

    def __init__(self, config: GatewayConfig, url: str, status: StatusFile) -> None:
        self.config = config
        self.root = _default_name(config.model)
        self.names = served_names(config.served_model_name, self.root)
        self.model = self.names[0]
        self.created = int(time.time())  # s since 1970
        self._url = url
        self._status = status
        self._epoch = new_epoch()
        self._ids: Iterator[str] = request_ids(self._epoch)
        self._keys = KeyRing(config.api_keys) if config.api_keys else None
        self.callers = Callers(self._keys, parse_objective(config.slo))
        self._store = connect(config.store.redis)
        self._clock = ServerClock()
        self.limiter = Limiter(RateStore(self._store), self._clock.server_now)
        secret = load_secret(config.store.secret_file)
        self._tenants = Tenants(secret)
        self.workers = WorkerDirectory[WorkerConnection]()
        self.metrics = Metrics(self.model, self.workers)
        self.refusals = Refusals(self.metrics, bool(config.api_keys))
        kept = TenantStore(self._store, secret, config.store_ttl, config.store_bytes)
        self.conversations = Conversations(kept, self._tenants, self._clock.server_now)
        self._signer = Signer(secret, RECORDS)
        self._publisher = Publisher(self._store, self._signer, self._clock, self._epoch)
        self._dispatch = Dispatch(
            config,
            self._epoch,
            partial(add_job, self._store, Sealer(secret, JOB_PURPOSE)),
            self._clock.server_now,
            self.workers,
            self.metrics,
        )
        self.requests = OpenRequests(
            config,
            self._dispatch,
            self.metrics,
            self._stream,
            EndReports(config, self.model, self._clock, self.metrics, self._publisher).ended,
            lambda key: self._keys is None or self._keys.known(key) is not None,
        )
        self.discovery = Discovery(
            self._store,
            self._signer,
            self._clock,
            self._epoch,
            config.model,
            CurveKeys.of(secret),
            self.workers,
            self.requests,
        )
        self.unloaded = UnloadedModel(config.unloaded_file, config.request_timeout, self.workers.ready)
        self.metrics.add_gauge("baton:model_unloaded", lambda: float(bool(self.unloaded.stage())))
        self._idle = IdleTime()
        self.metrics.add_gauge("baton:pairs_unreached", lambda: float(len(self.discovery.unreached)))
        self.adapters = AdapterLoading(config, self.names, self._store, secret, self._clock, self.workers)
        self.admission: PromptAdmission | None = None  # None until the tokenizer is loaded
        self._seen: list[GatewayRecord] = []  # this model's gateways at the last successful reading
        self._draining = False  # no new request is admitted
        self.traces = open_traces(config, self._epoch)
        self._tasks = Tasks("the gateway")

    async def start(self) -> None:
        """Loads the tokenizer and looks for workers. Raises `BatonError` if that fails."""
        self._status.report("connecting to Redis", 10.0)
        await until_answered(self._ask_store, Outage(log, "the gateway waits for it"), self._status.report)
        self._status.report("loading the tokenizer", 30.0)
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                directory = await asyncio.to_thread(locate_files, self.config.model)
                tokenizer = await asyncio.to_thread(ModelTokenizer, directory, self.config.spelled_tokens)
        except TimeoutError:
            raise ModelError(f"--model: {self.config.model!r} was not loaded within {LOAD_TIMEOUT_S:g} s") from None
        self.admission = PromptAdmission(
            self.config,
            self.names,
            tokenizer,
            GrammarChecks(directory, tokenizer.vocabulary),
            self._tenants,
            self.requests,
            self.workers,
            self.unloaded,
        )
        running = (
            self.discovery.run(),
            self.requests.run(),
            self._publisher.run(self._record),
            self.limiter.run(),
            self.refusals.run(),
            self._status.beat(self.idle_seconds if self.config.unloaded_file else None),
            *([self._follow(self._keys)] if self._keys is not None else []),
        )
        for work in running:
            self._tasks.start(work)
        self._status.ready(self._url)
        log.info("ready: %s serves %s", self._url, self.model)

    async def _ask_store(self) -> None:
        await check(self._store, self.config.store.redis)
        await self._clock.sync(self._store)

    async def watch(self) -> None:
        await self._tasks.wait()

    def readiness(self) -> tuple[str, float]:
        """Returns stage and percentage of the start; the stage is `ready` when a request would be served."""
        if self._draining:
            return "shutting down", 100.0
        if self.admission is None:
            return self._status.now.stage, self._status.now.percent
        if self._publisher.objection:
            return self._publisher.objection, 90.0
        if stage := self.unloaded.stage():
            return stage, 100.0
        return ("ready", 100.0) if self.workers.ready() else ("waiting for workers", 90.0)

    def serves(self) -> bool:
        """Returns whether a request would be served, perhaps after the model is loaded again."""
        return self.readiness()[0] in ("ready", self.unloaded.stage())

    def idle_seconds(self) -> float | None:
        """Returns the seconds since a request was in progress; None: there was none. Called once a second."""
        return self._idle.look(self.in_progress(), self.metrics.judged.total(), time.monotonic())

    def ready_admission(self) -> PromptAdmission:
        """Returns the admission of requests. Raises `APIError` (503) during the start and the shutdown."""
        if self._draining:
            raise unavailable("the server is shutting down", "shutting_down")
        if self.admission is None:
            stage, percent = self.readiness()
            raise unavailable(f"the server is starting: {stage}, {percent:.0f}%", "starting", 2.0)
        return self.admission

    def new_id(self) -> str:
        return next(self._ids)

    def holdings(self) -> Holdings:
        return Holdings(self.new_id, self.requests, self.limiter)

    async def worker_records(self) -> list[WorkerRecord]:
        """Returns the workers' records, in the order of their start. Raises `APIError` without Redis."""
        return await self._records(WorkerRecord)

    async def siblings(self) -> list[GatewayRecord]:
        """Returns the last records of all gateways that share this gateway's port, its own included.

        The list is empty if the port is not shared. Raises `APIError` without Redis.
        """
        return self._siblings_of(await self._gateways()) if self.config.share_port else []

    async def _gateways(self) -> list[GatewayRecord]:
        """Returns the records of this model's gateways, the oldest first. Raises `APIError` without Redis."""
        self._seen = [record for record in await self._records(GatewayRecord) if record.model == self.model]
        return self._seen

    async def _records(self, kind: type[RecordType]) -> list[RecordType]:
        try:
            found = await listed(self._store, self._signer, kind)
        except StoreUnavailable:
            raise unavailable("the registry is out of reach", "registry_unavailable", 2.0) from None
        return sorted((record for record, _ in found), key=lambda record: (record.started_at, record.epoch))

    def _siblings_of(self, gateways: list[GatewayRecord]) -> list[GatewayRecord]:
        return [record for record in gateways if record.group == self.config.share_port]

    async def metrics_page(self) -> str:
        """Returns the page for Prometheus.

        If several gateways share the port, the page has the last published metrics of all of them, each with the label
        `gateway`: so counters never go back, whichever gateway answers. Raises `APIError` without Redis if gateways
        share the port. Otherwise the gateways that were last seen decide which gateway shows which workers.
        """
        group = self.config.share_port
        try:
            gateways = await self._gateways()
        except APIError:
            if group:
                raise
            gateways = self._seen
        figures = [record.figures for record in self._siblings_of(gateways)] if group else []
        return await self.metrics.page(PageOwner(group or self._epoch, gateways), figures)

    async def all_in_progress(self) -> int:
        """Counts the answers in progress of all gateways that share the port, from their last records."""
        others = sum(sibling.in_progress for sibling in await self.siblings() if sibling.epoch != self._epoch)
        return self.in_progress() + others

    def mark_run(self, run: str, name: str, ended: bool) -> None:
        """Keeps when a measured load began or ended, for the dashboard's charts."""
        self._publisher.mark(RunMark(run, name, self._clock.server_now(), ended))

    def in_progress(self) -> int:
        """Counts the answers in progress, including those whose prompts are being tokenized, or wait for the model."""
        admitting = self.admission.admitting if self.admission is not None else 0
        return len(self.requests) + admitting + self.unloaded.waiting

    async def drain(self) -> None:
        """Refuses new requests, lets answers in progress finish for `--drain-seconds`, and then fails the others."""
        self._draining = True
        self.unloaded.close()
        seconds = self.config.drain_seconds
        log.info("shutting down: %d answers have %g s to end", self.in_progress(), seconds)
        until = time.monotonic() + seconds
        while self.in_progress() and time.monotonic() < until:
            await asyncio.sleep(0.02)
        message = f"the server is shutting down, and waits for no answer longer than {seconds:g} s (--drain-seconds)"
        self.requests.fail_all(unavailable(message, "shutting_down"))

    async def close(self) -> None:
        await self._tasks.close()
        await self.limiter.flush()
        if self.admission is not None:
            await self.admission.close()
            await self._publisher.close(await self._record())
        await self.discovery.close()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)
        await self._store.aclose()

    def _stream(self, sample: Sample, received: float, streaming: bool) -> Stream:
        assert self.admission is not None, "a prompt was admitted, so there is one"
        detokenizer = self.admission.tokenizer.detokenizer(sample.admitted.markers)
        return Stream(sample, detokenizer, received, streaming, self.metrics)

    async def _follow(self, keys: KeyRing) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if await asyncio.to_thread(keys.refresh):
                self.requests.revoke()

    async def _record(self) -> GatewayRecord:
        group = self.config.share_port
        now = self._clock.server_now()
        if (interval := self._publisher.sums.sample(self.workers, self.requests.waiting(), now)) is not None:
            self._publisher.interval(interval)
        self.metrics.roles.standing = standing = await self._dispatch.load.standing()
        return GatewayRecord(
            group=group,
            in_progress=self.in_progress(),
            waiting=self.requests.waiting(),
            figures=await self.metrics.own({"gateway": self._epoch}) if group else "",
            epoch=self._epoch,
            url=self._url,
            model=self.model,
            started_at=float(self.created),
            objective=self.callers.default_objective or Objective(self.config.slo_ttft_ms, self.config.slo_tpot_ms),
            requests=await self.requests.records(),
            adapters=sorted(self.requests.adapters()),
            standing=standing,
            refused=dict(+self.refusals.counts),
            judged=dict(self.metrics.judged),
            unloaded=self.unloaded.stage(),
        )


def _default_name(model: str) -> str:
    """Returns the model's name without `--served-model-name`: its hub id, or the last parts of a directory's path."""
    return model if model.count("/") == 1 and not model.startswith((".", "/", "~")) else short_name(model)
