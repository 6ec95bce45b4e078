"""What a decode worker does with a sequence: take its KV blocks, then turn them into tokens with everything else.

A landing sequence waits for room in the same line as short-path jobs and preempted sequences. From its landing on it is
one of the running batch, and its tokens go to its gateway step by step.
"""

import logging
from typing import Any

from msgspec import structs

from core.errors import CapacityError, MessageError
from core.ids import SequenceKey
from core.messages import DecodeJob, Emitted, Stages
from core.records import Load
from engine.scheduler import Progress
from engine.sequence import Sequence
from kvtransfer.moves import Dropped, HandoffKey, Landed, Wanted
from worker.events import Begin, Emit, Fail, HandoffOver, Kill, Phase, RoomGranted, RoomRefused, Submit
from worker.role import Parts, check_tokens

log = logging.getLogger("baton.decode")


class Run:
    """One sequence on this worker, and the handoff that brings it, if one does."""

    __slots__ = ("handoff", "landed", "queued_at", "sequence")

    def __init__(self, sequence: Sequence, handoff: HandoffKey | None, queued_at: float) -> None:
        self.sequence = sequence
        self.handoff = handoff
        self.landed = handoff is None
        self.queued_at = queued_at


class DecodePolicy:
    """See `worker.engine_loop.Policy`; everything here runs on the engine thread."""

    def __init__(self, parts: Parts) -> None:
        self._scheduler = parts.scheduler
        self._vocab_size = parts.vocab_size
        self._tell_io = parts.tell_io
        self._runs: dict[int, Run] = {}  # by the scheduler's number
        self._by_key: dict[SequenceKey, Run] = {}  # the landed ones
        self._by_handoff: dict[HandoffKey, Run] = {}
        self._counts = {"handoffs": 0, "bytes": 0}

    # receive --------------------------------------------------------------------------------------------------------

    def receive(self, event: Any, now: float) -> None:
        """An event from the I/O thread."""
        match event:
            case Submit(job=DecodeJob() as job):
                for sample in job.samples:
                    self._submit(job, sample)
            case Submit(job=job):
                for sample in job.samples:
                    key = SequenceKey(job.request, sample)
                    self._tell_io(Fail(key, job.attempt, "misdirected", "a decode worker takes no prefill jobs", True))
            case Kill(key=key, attempt=attempt):
                run = self._by_key.get(key)
                if run is not None and run.sequence.attempt <= attempt:
                    self._end(run)
            case Wanted():
                self._want(event, now)
            case Landed():
                self._land(event, now)
            case Dropped(key=key):
                if (run := self._by_handoff.get(key)) is not None:
                    self._end(run)

    def _submit(self, job: DecodeJob, sample: int) -> None:
        key = SequenceKey(job.request, sample)
        try:
            check_tokens(job.token_ids, self._vocab_size)
            sequence = Sequence.of_job(job, sample, hand_off=False)
            self._scheduler.add(sequence)
        except MessageError as error:
            self._tell_io(Fail(key, job.attempt, "malformed", str(error), False))
        except CapacityError as error:
            self._tell_io(Fail(key, job.attempt, "capacity", str(error), False))
        else:
            run = self._runs[sequence.id] = Run(sequence, None, job.queued_at)
            self._replace(run)

    def _want(self, wanted: Wanted, now: float) -> None:
        """A prefill worker asks for room."""
        opened, key = wanted.open, wanted.key
        try:
            check_tokens(opened.token_ids, self._vocab_size)
            sequence = Sequence(
                SequenceKey(opened.request, opened.samples[0]),
                opened.attempt,
                opened.gateway,
                list(opened.token_ids),
                opened.prompt_tokens,
                now + opened.remaining_ms / 1000,
                landing=True,
                salt=opened.salt,
                priority=opened.priority,
            )
            self._scheduler.add(sequence)
        except MessageError as error:
            self._tell_io(RoomRefused(key, "malformed", str(error), False))
        except CapacityError as error:
            self._tell_io(RoomRefused(key, "capacity", str(error), False))
        else:
            self._runs[sequence.id] = self._by_handoff[key] = Run(sequence, key, now)

    def _land(self, landed: Landed, now: float) -> None:
        """All its KV is here: it runs from the next step on."""
        run = self._by_handoff.get(landed.key)
        if run is None:
            return
        sequence, commit = run.sequence, landed.commit
        run.landed = True
        self._replace(run)
        self._counts["handoffs"] += 1
        self._counts["bytes"] += landed.bytes
        handoff_ms = (now - run.queued_at) * 1000  # from the Open to the last byte
        stages = structs.replace(commit.stages, handoff_ms=handoff_ms, handoff_bytes=landed.bytes)
        tokens = commit.branches[0].emitted
        emitted = Emitted(*sequence.key, sequence.attempt, commit.index, tokens, None, stages)
        self._tell_io(Begin(sequence.gateway, sequence.deadline, emitted))
        self._tell_io(Phase(sequence.key, sequence.attempt, "decode"))
        try:
            check_tokens(tokens, self._vocab_size)
            self._scheduler.adopt(sequence, {sequence.key.sample: tokens}, commit.sampling, commit.limits)
        except MessageError as error:
            self._fail(run, "malformed", str(error), retryable=False)
        except CapacityError as error:
            self._fail(run, "capacity", str(error), retryable=False)

    # plan -----------------------------------------------------------------------------------------------------------

    def admitted(self, sequences: list[Sequence], now: float) -> None:
        """These have their blocks: those that land may come."""
        for sequence in sequences:
            run = self._runs[sequence.id]
            if run.handoff is not None:
                blocks = tuple(list(table) for table in sequence.blocks)
                self._tell_io(RoomGranted(run.handoff, blocks, sequence.held_blocks))

    # send -----------------------------------------------------------------------------------------------------------

    def progressed(self, progress: list[Progress], now: float) -> None:
        """The tokens of this step, in one message for each gateway."""
        emitted = []
        for item in progress:
            run = self._runs.get(item.sequence.id)
            if run is None:
                continue
            if item.failed:
                self._fail(run, "engine", item.failed, retryable=False)
                continue
            if not item.tokens:
                continue
            stages = None
            if run.handoff is None and item.sequence.first_token_at == now:
                begun = item.sequence.admitted_at
                stages = Stages((begun - run.queued_at) * 1000, (now - begun) * 1000)
            key, attempt = item.sequence.key, item.sequence.attempt
            emitted.append(Emitted(*key, attempt, item.index, item.tokens, item.finish, stages))
            if item.finish is not None:
                self._end(run)
        if emitted:
            self._tell_io(Emit(emitted))

    def expired(self, sequences: list[Sequence], now: float) -> None:
        """These are over their deadline. What still lands is the transfer's to end: its blocks may be written to."""
        for sequence in sequences:
            run = self._runs.get(sequence.id)
            if run is not None and run.landed:
                self._fail(run, "deadline", "the request's deadline passed on the decode worker", retryable=False)

    def leave(self) -> None:
        """The worker stops: another one can go on with these."""
        for run in list(self._runs.values()):
            self._fail(run, "draining", "the decode worker is leaving", retryable=True)

    def busy(self) -> bool:
        """Whether any sequence is here."""
        return bool(self._runs)

    def load(self) -> Load:
        """How busy this worker is."""
        load = self._scheduler.load()
        return load.with_counts(load.waiting, self._counts["handoffs"], self._counts["bytes"])

    # ends -----------------------------------------------------------------------------------------------------------

    def _fail(self, run: Run, reason: str, message: str, retryable: bool) -> None:
        """A sequence that has not landed is still the prefill worker's to report."""
        if run.landed:
            self._tell_io(Fail(run.sequence.key, run.sequence.attempt, reason, message, retryable))
        elif run.handoff is not None:
            self._tell_io(RoomRefused(run.handoff, reason, message, retryable))
        self._end(run)

    def _replace(self, run: Run) -> None:
        """From here on this attempt is the one of its request; a lower one whose Cancel was lost ends."""
        old = self._by_key.get(run.sequence.key)
        self._by_key[run.sequence.key] = run
        if old is not None:
            self._end(old)

    def _end(self, run: Run) -> None:
        sequence = run.sequence
        del self._runs[sequence.id]
        if self._by_key.get(sequence.key) is run:
            del self._by_key[sequence.key]
        if run.handoff is not None:
            del self._by_handoff[run.handoff]
            if run.landed:
                self._tell_io(HandoffOver(run.handoff))
        self._scheduler.release(sequence)
