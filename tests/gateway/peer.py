"""A worker that speaks the real protocol over real sockets and a real queue, and whose tokens are known beforehand.

It computes nothing: the tokens of a sample are given by a function of (job, sample), and the scores that a job wants by
its tokens (`tests.scores`). Faults are switched on by name;
with `only`, those of computing strike these samples alone. It has both roles' duties at once: a prefill peer passes
each sequence to its decode peer by a call, in place of the KV handoff.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from contracts.errors import StoreUnavailable
from contracts.ids import NO_TICKET, AttemptKey, SampleKey
from contracts.messages.gateway import (
    Alive,
    Ask,
    Cancel,
    Emitted,
    Ended,
    Failed,
    FromWorker,
    Hello,
    Piece,
    Ping,
    Pong,
    Question,
    Stages,
    Started,
    Tokens,
    Wanted,
    Way,
    Welcome,
)
from contracts.messages.job import AnyJob, PrefillJob
from contracts.messages.sampling import Finish
from contracts.messages.wire import VERSION
from infra.process.ending import end
from infra.redis.records import KVLink, Role, WorkerRecord
from infra.redis.worker_load import WorkerLoad
from testing.worker_endpoint import WorkerEndpoint
from tests.scores import scores_of
from worker.gateways.bodies import REASON_NO_BODY, MissingPrompt, PromptBodies

TOKEN_PERIOD_S = 0.004  # s between tokens


class Sequence:
    """What a peer knows of one attempt at one sample."""

    def __init__(self, job: AnyJob, sample: int, answer: list[int]) -> None:
        self.job = job
        self.key = SampleKey(job.request, sample)
        self.base = job.emitted
        self.answer = answer[: job.limits.max_tokens]
        self.sent = self.base


TOLD: dict[Role, Stages] = {
    "prefill": Stages(queue_ms=1.5, prefill_ms=2.5),
    "decode": Stages(  # what came with the Commit among them
        queue_ms=1.5,
        prefill_ms=2.5,
        handoff_ms=8.0,
        handoff_bytes=4096,
        grant_ms=4.0,
        send_ms=1.0,
        land_ms=0.25,
        exposed_ms=0.75,
        way=Way("tcp", True, "fp8"),
    ),
}
"""What each role says of a sequence's way."""


class Peer:
    def __init__(
        self,
        role: Role,
        redis: str,
        secret: bytes,
        model: str,
        answer: Callable[[AnyJob, int], list[int]],
        **faults: Any,
    ) -> None:
        self.role = role
        self.faults = faults
        self.jobs: list[AnyJob] = []
        self.cancels: list[Cancel] = []
        self.asks: list[Ask] = []
        self.ends: list[Ended] = []
        self.holding: dict[SampleKey, Sequence] = {}
        self.load = WorkerLoad(blocks_total=1000)
        self.links: list[KVLink] = []
        self.taken = NO_TICKET
        self.pieces: list[Piece] = []
        self.decoders: dict[str, Peer] = {}
        fields = {"max_model_len": faults.get("max_model_len", 4096), "device": "test"}
        if "pooling" in faults:
            fields["pooling"] = faults["pooling"]
        if "fingerprint" in faults:
            fields |= {"fingerprint": faults["fingerprint"], "content": faults["fingerprint"]}
        self._endpoint = WorkerEndpoint(role, redis, secret, model, **fields)
        self.epoch = self._endpoint.epoch
        self._answer = answer
        self._dead: dict[SampleKey, int] = {}
        self._bodies = PromptBodies()
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> "Peer":
        await self._endpoint.open()
        await self.beat()
        self._tasks = [asyncio.create_task(work()) for work in (self._serve, self._take, self._beats)]
        return self

    @property
    def record(self) -> WorkerRecord:
        return self._endpoint.record

    @record.setter
    def record(self, record: WorkerRecord) -> None:
        self._endpoint.record = record

    async def beat(self) -> None:
        await self._endpoint.beat(load=self.load, links=self.links)

    async def leave(self) -> None:
        """Takes no job any more and removes its stream, as at the end of a drain; its record has not expired yet."""
        await end(self._tasks[1:])
        await self._endpoint.queue.close()
        self.taken = self._endpoint.queue.taken

    async def die(self) -> None:
        await end(self._tasks)
        self._tasks = []
        await self._endpoint.close()

    async def say(self, gateway: str, message: FromWorker) -> None:
        await self._endpoint.send(gateway, message)

    def heard_from(self) -> list[str]:
        return list(self._endpoint.gateways)

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            with contextlib.suppress(StoreUnavailable):
                await self.beat()

    async def _serve(self) -> None:
        while True:
            message = await self._endpoint.receive()
            if self.faults.get("frozen"):
                continue
            assert message.receiver == self.epoch
            ends: dict[str, Any] = {"sender": self.epoch, "receiver": message.sender}
            match message:
                case Hello():
                    await self.say(message.sender, Welcome(**ends, version=self.faults.get("version", VERSION)))
                case Ping(number=number):
                    pong = Pong(
                        **ends,
                        number=number,
                        steps=0,
                        step_due_ms=self.faults.get("step_due_ms", 0.0),
                        taken=self.taken,
                    )
                    await self.say(message.sender, pong)
                case Cancel():
                    await self._cancelled(message)
                case Ask():
                    self.asks.append(message)
                    for one in message.asked:
                        await self._asked(message.sender, one)
                case Piece():
                    self.pieces.append(message)
                    await self._arrived(message)
                case Ended():
                    self.ends.append(message)
                    self.holding.pop(message.key.of, None)

    async def _cancelled(self, message: Cancel) -> None:
        self.cancels.append(message)
        key = message.key.of
        self._dead[key] = max(message.key.attempt, self._dead.get(key, 0))
        if self.faults.get("deaf_to_cancel", 0) >= len([one for one in self.cancels if one.key.request == key.request]):
            return
        known = key in self.holding and self.holding[key].job.attempt <= message.key.attempt
        if known:
            del self.holding[key]
        await self.say(
            message.sender,
            Failed(
                sender=self.epoch,
                receiver=message.sender,
                key=message.key,
                reason="cancelled" if known else "unknown",
            ),
        )

    async def _asked(self, gateway: str, asked: Question) -> None:
        name: dict[str, Any] = {"key": asked.key}
        ends: dict[str, Any] = {"sender": self.epoch, "receiver": gateway}
        sequence = self.holding.get(asked.key.of)
        if self.faults.get("deaf_to_ask"):
            return
        if sequence is None or sequence.job.attempt != asked.key.attempt:
            await self.say(gateway, Failed(**ends, **name, reason="unknown", retryable=True))
        elif asked.next_index < sequence.sent:
            await self._emit(sequence, asked.next_index, sequence.sent)
        else:
            await self.say(gateway, Alive(**ends, **name, state="running"))

    async def _take(self) -> None:
        while True:
            if self.faults.get("takes_nothing"):
                await asyncio.sleep(TOKEN_PERIOD_S)
                continue
            jobs: list[AnyJob] = []
            try:
                jobs = await self._endpoint.queue.take(64, 500)
            except StoreUnavailable:
                await asyncio.sleep(TOKEN_PERIOD_S)
            for job in jobs:
                self.jobs.append(job)
                if self.faults.get("deaf_to_jobs", 0) >= len(self.jobs):
                    continue
                await self.say(
                    job.sender,
                    Started(
                        sender=self.epoch,
                        receiver=job.sender,
                        request=job.request,
                        attempt=job.attempt,
                        samples=job.samples,
                    ),
                )
                if job.body is None:
                    self._submit(job)
                else:
                    self._bodies.add(job)
                    await self._want()
            self.taken = self._endpoint.queue.taken

    async def _want(self) -> None:
        for job, first in self._bodies.due(time.monotonic()):
            name: dict[str, Any] = {"request": job.request, "attempt": job.attempt, "samples": job.samples}
            await self.say(job.sender, Wanted(sender=self.epoch, receiver=job.sender, **name, first=first))

    async def _arrived(self, piece: Piece) -> None:
        """Takes a piece, or says that the prompt does not come if it is to lose it."""
        if self.faults.get("deaf_to_pieces"):
            return
        come = self._bodies.take(piece, time.monotonic())
        assert not isinstance(come, MissingPrompt), come
        if come is not None and self.faults.get("loses_bodies"):
            for sample in come.samples:
                self.holding[SampleKey(come.request, sample)] = sequence = Sequence(come, sample, [])
                await self._fail(sequence, REASON_NO_BODY, retryable=True)
        elif come is not None:
            self._submit(come)
        await self._want()

    def _submit(self, job: AnyJob) -> None:
        for sample in job.samples:
            key = SampleKey(job.request, sample)
            held = self.holding.get(key)
            if self._dead.get(key, 0) < job.attempt and (held is None or held.job.attempt < job.attempt):
                self.begin(job, sample)

    def begin(self, job: AnyJob, sample: int) -> None:
        self._tasks.append(asyncio.create_task(self._generate(job, sample)))

    async def _generate(self, job: AnyJob, sample: int) -> None:
        """Of a handoff a prefill peer makes one token and passes the sequence on; others make all that are left."""
        sequence = Sequence(job, sample, self._answer(job, sample))
        self.holding[sequence.key] = sequence
        fault = self.faults if sample in self.faults.get("only", job.samples) else {}
        if reason := fault.get("fails"):
            await self._fail(sequence, reason, retryable=fault.get("retryable", True))
            return
        if fault.get("mute"):
            return
        if pools := self.faults.get("pools"):
            key = AttemptKey(*sequence.key, job.attempt)
            pooled = Emitted(key, 0, [], "stop", TOLD["prefill"], vector=pools(job))
            await self.say(job.sender, Tokens(sender=self.epoch, receiver=job.sender, emitted=[pooled]))
            return
        if self.role == "prefill" and isinstance(job, PrefillJob):
            sequence.sent += 1
            await self._emit(sequence, sequence.base, sequence.sent)
            if sequence.sent < len(sequence.answer):
                self.decoders[job.decode_epoch].begin(job, sample)
            return
        stop_at = fault.get("stalls_at", 1 << 30)
        while sequence.sent < len(sequence.answer) and self.holding.get(sequence.key) is sequence:
            start, sequence.sent = sequence.sent, min(sequence.sent + fault.get("burst", 1), len(sequence.answer))
            await self._emit(sequence, start, sequence.sent)
            if sequence.sent >= stop_at:
                return
            await asyncio.sleep(fault.get("step", TOKEN_PERIOD_S))

    async def _emit(self, sequence: Sequence, start: int, end: int) -> None:
        last = end == len(sequence.answer)
        stopped = sequence.answer[-1] in sequence.job.limits.stop_token_ids
        finish: Finish | None = ("stop" if stopped else "length") if last else None
        pieces: list[tuple[int, int, Finish | None]] = [(start, end, finish)]
        if self.faults.get("garbles") and end - start == 1 and not last:
            if end % 5 == 0:
                return  # lost
            pieces = [
                (start, end, None),
                (max(sequence.base, start - (end % 5 > 2)), end, None),
            ]  # repeated, overlapping
        elif self.faults.get("garbles") and end - start > 2:
            pieces = [(start + 1, end, finish), (start, start + 2, None)]  # the last first
        stages = TOLD[self.role]
        for first, behind, end_of in pieces:
            key, job = sequence.key, sequence.job
            attempt = AttemptKey(*key, job.attempt)
            tokens, sampling = sequence.answer[first:behind], job.sampling
            scores = scores_of(tokens, sampling.logprobs) if sampling.logprobs is not None else None
            prompt = None
            if sampling.prompt_logprobs is not None and first == 0:
                prompt = scores_of(job.prompt.token_ids[1:], sampling.prompt_logprobs)
            emitted = Emitted(attempt, first, tokens, end_of, stages, scores, prompt)
            await self.say(job.sender, Tokens(sender=self.epoch, receiver=job.sender, emitted=[emitted]))

    async def fail_all(self, reason: str) -> None:
        """Fails everything that it holds, for good, as soon as it holds something."""
        while not self.holding:
            await asyncio.sleep(TOKEN_PERIOD_S)
        for sequence in list(self.holding.values()):
            await self._fail(sequence, reason, retryable=False)

    async def _fail(self, sequence: Sequence, reason: str, retryable: bool) -> None:
        job = sequence.job
        del self.holding[sequence.key]
        await self.say(
            job.sender,
            Failed(
                sender=self.epoch,
                receiver=job.sender,
                key=AttemptKey(*sequence.key, job.attempt),
                reason=reason,
                message="a sentence",
                retryable=retryable,
            ),
        )


def introduce(peers: Iterable[Peer]) -> None:
    known = {peer.epoch: peer for peer in peers if peer.role == "decode"}
    for peer in peers:
        peer.decoders = known
