"""What a prefill worker does with a sequence: compute its prompt, sample one token, hand it to its decode worker.

Blocks of the prompt are held twice: by the sequence until the handoff is closed, and by the transfer until no frame can
be read from them any more. KV that waits for one decode worker holds at most a share of the pool; later prompts for
that worker wait in a line of their own, and prompts for others pass them.
"""

import logging
from collections import deque
from typing import Any

from core.errors import CapacityError, MessageError
from core.ids import SequenceKey
from core.kvspec import blocks_for
from core.messages import HANDED_OFF, Branch, Emitted, PrefillJob, Stages
from core.records import Load
from engine.blocks import Tables
from engine.plan import Plan
from engine.scheduler import Progress
from engine.sequence import Sequence
from kvtransfer.moves import Closed, FirstTokens, Unpinned
from worker.events import AbortHandoff, CommitHandoff, Emit, Fail, Kill, LayerWritten, OpenHandoff, Phase, Submit
from worker.role import Parts, check_tokens

log = logging.getLogger("baton.prefill")


class Pass:
    """One sequence on its way through this worker. Its handoff has the sequence's number."""

    __slots__ = ("job", "opened", "sequence")

    def __init__(self, sequence: Sequence, job: PrefillJob) -> None:
        self.sequence = sequence
        self.job = job
        self.opened = False


class PrefillPolicy:
    """See `worker.engine_loop.Policy`; everything here runs on the engine thread."""

    def __init__(self, parts: Parts) -> None:
        self._scheduler = parts.scheduler
        self._blocks = parts.blocks
        self._vocab_size = parts.vocab_size
        self._tell_io = parts.tell_io
        self._block_tokens = parts.spec.groups[0].block_tokens
        self._passes: dict[SequenceKey, Pass] = {}
        self._by_id: dict[int, Pass] = {}  # those that the scheduler has
        self._pinned: dict[int, Tables] = {}  # by handoff
        self._share = max(1, int(parts.config.transfer.waiting_share * parts.blocks.total))
        self._held: dict[str, int] = {}  # blocks on their way to each decode worker
        self._lines: dict[str, deque[Pass]] = {}  # those that wait for their decode worker's share
        self._counts = {"handoffs": 0, "bytes": 0}

    # receive --------------------------------------------------------------------------------------------------------

    def receive(self, event: Any, now: float) -> None:
        """An event from the I/O thread."""
        match event:
            case Submit(job=PrefillJob() as job):
                for sample in job.samples:
                    self._submit(job, sample)
            case Submit(job=job):
                for sample in job.samples:
                    key = SequenceKey(job.request, sample)
                    self._tell_io(Fail(key, job.attempt, "misdirected", "a prefill worker takes prefill jobs", True))
            case Kill(key=key, attempt=attempt):
                self._kill(key, attempt)
            case Closed():
                self._closed(event)
            case Unpinned(handoff=handoff):
                self._unpin(handoff)

    def _submit(self, job: PrefillJob, sample: int) -> None:
        try:
            check_tokens(job.token_ids, self._vocab_size)
            one = Pass(Sequence.of_job(job, sample, hand_off=True), job)
        except MessageError as error:
            self._tell_io(Fail(SequenceKey(job.request, sample), job.attempt, "malformed", str(error), False))
            return
        self._passes[one.sequence.key] = one
        line = self._lines.get(job.decode_epoch)
        if line or not self._fits(one):
            self._lines.setdefault(job.decode_epoch, deque()).append(one)
        else:
            self._add(one)

    def _fits(self, one: Pass) -> bool:
        held = self._held.get(one.job.decode_epoch, 0)
        return held == 0 or held + self._need(one) <= self._share

    def _need(self, one: Pass) -> int:
        return blocks_for(len(one.job.token_ids), self._block_tokens)

    def _add(self, one: Pass) -> None:
        sequence, peer = one.sequence, one.job.decode_epoch
        try:
            self._scheduler.add(sequence)
        except CapacityError as error:
            self._forget(one)
            self._tell_io(Fail(sequence.key, sequence.attempt, "capacity", str(error), False))
        else:
            self._by_id[sequence.id] = one
            self._held[peer] = self._held.get(peer, 0) + self._need(one)

    def _kill(self, key: SequenceKey, attempt: int) -> None:
        one = self._passes.get(key)
        if one is not None and one.sequence.attempt <= attempt:
            self._end(one, "cancelled")

    def _closed(self, closed: Closed) -> None:
        one = self._by_id.get(closed.handoff)
        if one is None:
            return
        one.opened = False
        if closed.outcome == "accepted":
            self._counts["handoffs"] += 1
            self._counts["bytes"] += closed.bytes
            self._end(one, "accepted")
        else:
            self._fail(one, closed.reason, f"handoff: {closed.reason}", closed.retryable)

    def _unpin(self, handoff: int) -> None:
        for group, blocks in enumerate(self._pinned.pop(handoff)):
            self._blocks.release_io(group, blocks)

    # plan -----------------------------------------------------------------------------------------------------------

    def admitted(self, sequences: list[Sequence], now: float) -> None:
        """Their prompts' blocks are there: ask the decode worker for room while computing."""
        for sequence in sequences:
            one = self._by_id[sequence.id]
            self._tell_io(Phase(sequence.key, sequence.attempt, "prefill"))
            if sequence.end_length <= len(sequence.tokens) + 1:
                continue  # its first token is its last
            blocks = tuple(list(table) for table in sequence.blocks)
            for group, table in enumerate(blocks):
                self._blocks.hold_io(group, table)
            self._pinned[sequence.id] = blocks
            one.opened = True
            self._tell_io(OpenHandoff(sequence.id, one.job, sequence.key.sample, blocks))

    # run ------------------------------------------------------------------------------------------------------------

    def layer_written(self, plan: Plan, group: int, layer: int) -> None:
        """This layer of this step is in the pool: its full blocks may leave, with the last chunk all of them."""
        ready = []
        for work in plan.works:
            one = self._by_id.get(work.sequence)
            if one is None or not one.opened:
                continue
            end = work.start + len(work.token_ids)
            last = end >= len(one.job.token_ids)
            ready.append((work.sequence, blocks_for(end, self._block_tokens) if last else end // self._block_tokens))
        if ready:
            self._tell_io(LayerWritten(group, layer, ready))

    # send -----------------------------------------------------------------------------------------------------------

    def progressed(self, progress: list[Progress], now: float) -> None:
        """First tokens go straight to the gateways; the sequences follow their blocks."""
        emitted = []
        for item in progress:
            one = self._by_id.get(item.sequence.id)
            if one is None:
                continue
            if item.failed:
                self._fail(one, "engine", item.failed, retryable=False)
                continue
            if not item.tokens:
                continue
            sequence, job = one.sequence, one.job
            begun = sequence.admitted_at
            stages = Stages((begun - job.queued_at) * 1000, (now - begun) * 1000)
            emitted.append(
                Emitted(*sequence.key, sequence.attempt, item.index, item.tokens, item.finish, stages)
            )
            if item.finish is not None:
                self._end(one, "done")
            else:
                first = FirstTokens(
                    index=item.index,
                    branches=[Branch(sequence.key.sample, item.tokens)],
                    sampling=job.sampling,
                    limits=job.limits,
                    stages=stages,
                )
                self._tell_io(CommitHandoff(sequence.id, first))
                self._tell_io(Phase(sequence.key, sequence.attempt, HANDED_OFF))
        if emitted:
            self._tell_io(Emit(emitted))

    def expired(self, sequences: list[Sequence], now: float) -> None:
        """These are over their deadline."""
        for sequence in sequences:
            if (one := self._by_id.get(sequence.id)) is not None:
                self._fail(one, "deadline", "the request's deadline passed on the prefill worker", retryable=False)

    def leave(self) -> None:
        """The worker stops: another one can compute these."""
        for one in list(self._passes.values()):
            self._fail(one, "draining", "the prefill worker is leaving", retryable=True)

    def busy(self) -> bool:
        """Whether any sequence is here."""
        return bool(self._passes or self._pinned)

    def load(self) -> Load:
        """How busy this worker is."""
        load = self._scheduler.load()
        waiting = load.waiting + sum(len(line) for line in self._lines.values())
        return load.with_counts(waiting, self._counts["handoffs"], self._counts["bytes"])

    # ends -----------------------------------------------------------------------------------------------------------

    def _fail(self, one: Pass, reason: str, message: str, retryable: bool) -> None:
        self._tell_io(Fail(one.sequence.key, one.sequence.attempt, reason, message, retryable))
        self._end(one, reason)

    def _end(self, one: Pass, reason: str) -> None:
        """This worker is done with the sequence; the transfer may still hold its blocks."""
        sequence, peer = one.sequence, one.job.decode_epoch
        if one.opened:
            self._tell_io(AbortHandoff(sequence.id, reason))
        self._forget(one)
        line = self._lines.get(peer)
        if line is not None and one in line:
            line.remove(one)
            return
        self._scheduler.release(sequence)
        self._held[peer] -= self._need(one)
        if not self._held[peer]:
            del self._held[peer]
        self._advance(peer)

    def _forget(self, one: Pass) -> None:
        if self._passes.get(one.sequence.key) is one:  # a higher attempt may have its place
            del self._passes[one.sequence.key]
        self._by_id.pop(one.sequence.id, None)

    def _advance(self, peer: str) -> None:
        line = self._lines.get(peer)
        while line and self._fits(line[0]):
            self._add(line.popleft())
        if line is not None and not line:
            self._lines.pop(peer, None)
