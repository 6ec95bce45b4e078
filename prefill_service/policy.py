"""What a prefill worker does with a job: compute its prompt once, draw a token per sample, hand them over together.

Blocks of the prompt are held twice: by the stem until the handoff is closed, and by the transfer until no frame can be
read from them any more. KV that waits for one decode worker holds at most a share of the pool; later prompts for that
worker wait in a line of their own, and prompts for others pass them.
"""

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

from core.errors import CapacityError, MessageError
from core.ids import SequenceKey
from core.kvspec import blocks_for
from core.messages import HANDED_OFF, AnyJob, Branch, Emitted, PrefillJob, Stages
from core.records import HeldBlocks, Load
from engine.blocks.manager import Tables
from engine.plan import Plan
from engine.schedule.scheduler import Progress
from engine.schedule.sequence import Sequence, SequenceState
from kvtransfer.moves import Closed, FirstTokens, Unpinned
from worker.events import AbortHandoff, CommitHandoff, Emit, Fail, Kill, LayerWritten, OpenHandoff, Phase, Submit
from worker.role import Parts, check_tokens

log = logging.getLogger("baton.prefill")


class Pass:
    """The samples of one prompt on their way through this worker. Their one handoff has the stem's number."""

    __slots__ = ("job", "living", "opened", "stem")

    def __init__(self, job: PrefillJob, sequences: list[Sequence]) -> None:
        self.job = job
        self.living = {each.key: each for each in sequences}  # those whose end is still this worker's to tell
        self.stem = sequences[0]  # computes the prompt for all, and holds its blocks; no number: it waits in a line
        self.opened = False

    def stages(self, now: float) -> Stages:
        """The way so far, at the first tokens."""
        begun = self.stem.admitted_at
        cached = min(self.stem.cached_tokens, self.stem.prompt_tokens)
        return Stages((begun - self.job.queued_at) * 1000, (now - begun) * 1000, cached_tokens=cached)


class PrefillPolicy:
    """See `worker.engine_loop.Policy`; everything here runs on the engine thread."""

    def __init__(self, parts: Parts) -> None:
        self._scheduler = parts.scheduler
        self._blocks = parts.blocks
        self._vocab_size = parts.vocab_size
        self._tell_io = parts.tell_io
        self._block_tokens = parts.spec.groups[0].block_tokens
        self._by_key: dict[SequenceKey, Pass] = {}  # of the living
        self._by_number: dict[int, Pass] = {}  # those that the scheduler has
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
                self._submit(job)
            case Submit(job=job):
                self._refuse(job, "misdirected", "a prefill worker takes prefill jobs", retryable=True)
            case Kill(key=key, attempt=attempt):
                self._kill(key, attempt)
            case Closed():
                self._closed(event)
            case Unpinned(handoff=handoff):
                self._unpin(handoff)

    def _submit(self, job: PrefillJob) -> None:
        for sample in job.samples:
            self._kill(SequenceKey(job.request, sample), job.attempt)  # a lower attempt whose Cancel was lost
        try:
            check_tokens(job.token_ids, self._vocab_size)
            one = Pass(job, [Sequence.of_job(job, sample, hand_off=True) for sample in job.samples])
        except MessageError as error:
            self._refuse(job, "malformed", str(error), retryable=False)
            return
        self._by_key |= dict.fromkeys(one.living, one)
        self._lines.setdefault(job.decode_epoch, deque()).append(one)
        self._advance(job.decode_epoch)

    def _refuse(self, job: AnyJob, reason: str, message: str, *, retryable: bool) -> None:
        for sample in job.samples:
            self._tell_io(Fail(SequenceKey(job.request, sample), job.attempt, reason, message, retryable))

    def _advance(self, peer: str) -> None:
        """Those at the head of a decode worker's line go on, while its share has room."""
        line = self._lines[peer]
        while line and self._fits(line[0]):
            self._add(line.popleft())
        if not line:
            del self._lines[peer]

    def _fits(self, one: Pass) -> bool:
        held = self._held.get(one.job.decode_epoch, 0)
        return held == 0 or held + self._need(one) <= self._share

    def _need(self, one: Pass) -> int:
        return blocks_for(len(one.job.token_ids), self._block_tokens)

    def _add(self, one: Pass) -> None:
        one.stem, *branches = one.living.values()
        try:
            self._scheduler.add(one.stem, branches)
        except CapacityError as error:
            self._fail(one, one.living.values(), "capacity", str(error), retryable=False)
        else:
            self._by_number[one.stem.id] = one
            peer = one.job.decode_epoch
            self._held[peer] = self._held.get(peer, 0) + self._need(one)

    def _kill(self, key: SequenceKey, attempt: int) -> None:
        one = self._by_key.get(key)
        if one is not None and one.job.attempt <= attempt:
            self._leave(one, key, "cancelled")

    def _closed(self, closed: Closed) -> None:
        one = self._by_number.get(closed.handoff)
        if one is None:
            return
        one.opened = False
        if closed.outcome == "accepted":
            self._counts["handoffs"] += 1
            self._counts["bytes"] += closed.bytes
            for key in list(one.living):
                self._leave(one, key, "accepted")
        else:
            reason = closed.reason
            self._fail(one, one.living.values(), reason, f"handoff: {reason}", retryable=closed.retryable)

    def _unpin(self, handoff: int) -> None:
        for group, blocks in enumerate(self._pinned.pop(handoff)):
            self._blocks.release_io(group, blocks)

    # plan -----------------------------------------------------------------------------------------------------------

    def admitted(self, sequences: list[Sequence], now: float) -> None:
        """Their prompts' blocks are there: ask the decode worker for room while computing."""
        for stem in sequences:
            one = self._by_number[stem.id]
            for key in one.living:
                self._tell_io(Phase(key, one.job.attempt, "prefill"))
            if stem.end_length <= len(stem.tokens) + 1:
                continue  # its first token is its last
            blocks = tuple(list(table) for table in stem.blocks)
            for group, table in enumerate(blocks):
                self._blocks.hold_io(group, table)
            self._pinned[stem.id] = blocks
            one.opened = True
            samples = tuple(key.sample for key in one.living)
            self._tell_io(OpenHandoff(stem.id, one.job, samples, blocks))

    # run ------------------------------------------------------------------------------------------------------------

    def layer_written(self, plan: Plan, group: int, layer: int) -> None:
        """This layer of this step is in the pool: its full blocks may leave, with the last chunk all of them.

        Blocks before the step's own were computed by earlier steps, or found here: these leave with the first chunk.
        """
        ready = []
        for work in plan.works:
            one = self._by_number.get(work.sequence)
            if one is None or not one.opened:
                continue
            end = work.start + len(work.token_ids)
            last = end >= len(one.job.token_ids)
            ready.append((work.sequence, blocks_for(end, self._block_tokens) if last else end // self._block_tokens))
        if ready:
            self._tell_io(LayerWritten(group, layer, ready))

    # send -----------------------------------------------------------------------------------------------------------

    def progressed(self, progress: list[Progress], now: float) -> None:
        """First tokens go straight to the gateways; the samples that go on follow their blocks."""
        emitted: list[Emitted] = []
        going: dict[Pass, list[Branch]] = {}
        for item in progress:
            key = item.sequence.key
            one = self._by_key[key]
            if item.failed:
                self._fail(one, [item.sequence], "engine", item.failed, retryable=False)
                continue
            stages = one.stages(now)
            emitted.append(Emitted(*key, one.job.attempt, item.index, item.tokens, item.finish, stages))
            if item.finish is None:
                going.setdefault(one, []).append(Branch(key.sample, item.tokens))
            else:
                self._leave(one, key, "done")
        for one, branches in going.items():
            self._commit(one, branches, now)
        if emitted:
            self._tell_io(Emit(emitted))

    def _commit(self, one: Pass, branches: list[Branch], now: float) -> None:
        job = one.job
        first = FirstTokens(
            index=len(job.token_ids) - job.prompt_tokens,
            branches=branches,
            sampling=job.sampling,
            limits=job.limits,
            stages=one.stages(now),
        )
        self._tell_io(CommitHandoff(one.stem.id, first, now))
        for branch in branches:
            self._tell_io(Phase(SequenceKey(job.request, branch.sample), job.attempt, HANDED_OFF))

    def expired(self, sequences: list[Sequence], now: float) -> None:
        """These are over their deadline, which all samples of a pass have in common."""
        text = "the request's deadline passed on the prefill worker"
        for sequence in sequences:
            if (one := self._by_number.get(sequence.id)) is not None:  # a stem
                self._fail(one, one.living.values(), "deadline", text, retryable=False)

    def leave(self) -> None:
        """The worker stops: another one can compute these."""
        for one in dict.fromkeys(self._by_key.values()):
            self._fail(one, one.living.values(), "draining", "the prefill worker is leaving", retryable=True)

    def busy(self) -> bool:
        """Whether any sequence is here."""
        return bool(self._by_key or self._pinned)

    def load(self) -> Load:
        """How busy this worker is."""
        load = self._scheduler.load()
        waiting = load.waiting + sum(len(line) for line in self._lines.values())
        quarantined = self._blocks.quarantined_count
        held = HeldBlocks(pinned=self._blocks.pinned_count - quarantined, quarantined=quarantined)
        return load.with_counts(waiting, self._counts["handoffs"], self._counts["bytes"], held)

    # ends -----------------------------------------------------------------------------------------------------------

    def _fail(self, one: Pass, sequences: Iterable[Sequence], reason: str, message: str, *, retryable: bool) -> None:
        for sequence in list(sequences):
            self._tell_io(Fail(sequence.key, one.job.attempt, reason, message, retryable))
            self._leave(one, sequence.key, reason)

    def _leave(self, one: Pass, key: SequenceKey, reason: str) -> None:
        """A sample's end is told, or not this worker's to tell any more. The last one takes the pass with it."""
        sequence = one.living.pop(key)
        del self._by_key[key]
        if sequence.id and sequence.state is not SequenceState.PARKED:  # the stem parks for those that go on
            self._scheduler.release(sequence)
        if not one.living:
            self._end(one, reason)

    def _end(self, one: Pass, reason: str) -> None:
        """This worker is done with the prompt; the transfer may still hold its blocks."""
        number, peer = one.stem.id, one.job.decode_epoch
        if one.opened:
            self._tell_io(AbortHandoff(number, reason))
        if number:
            del self._by_number[number]
            self._scheduler.release(one.stem)
            self._held[peer] -= self._need(one)
            if not self._held[peer]:
                del self._held[peer]
        elif one in self._lines[peer]:
            self._lines[peer].remove(one)
        else:
            return  # it could never fit
        if peer in self._lines:
            self._advance(peer)
