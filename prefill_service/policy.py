"""Decides what a prefill worker does with a job: computes its prompt once, draws a token per sample, hands them over.

Blocks of the prompt are held twice: by the stem until the handoff is closed, and by the transfer until no frame can be
read from them any more. KV that waits for one decode worker holds at most a share of the pool, and of several no more
than an equal one, so that those that have no room for long leave room for the others. Later prompts for that worker
wait in a line of their own, and prompts for others pass them.

While no decode worker is there it gets whole requests, and answers them as a decode worker does (`worker.answering`).
"""

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import structs

from contracts.errors import CapacityError, MessageError
from contracts.ids import AttemptKey, SampleKey
from contracts.kv.spec import blocks_for
from contracts.messages.gateway import REASON_NO_ADAPTER, STATE_HANDED_OFF, STATE_HANDING_OFF, Emitted, Stages
from contracts.messages.handoff import Branch
from contracts.messages.job import PrefillJob
from contracts.messages.packed_ids import packed
from contracts.scores import Scores
from engine.plan import Plan
from engine.schedule.line import Line
from engine.schedule.progress import Progress, may_do_better, reason_of
from engine.schedule.sequence import Sequence, SequenceState
from infra.redis.records import HeldBlocks, WorkerLoad
from kvtransfer.events import AbortHandoff, BlocksTaken, Closed, CommitHandoff, LayerReady, OpenHandoff, Unpinned
from pricing.backlog import Ahead, owner_of
from worker.answering import Answering
from worker.events import AttemptFailure, Emit, Fail, Kill, Phase, Submit
from worker.role import WorkerParts, check_tokens

log = logging.getLogger("baton.prefill")


class SequenceGroup:
    """Keeps the samples of one prompt on their way through this worker. Their one handoff has the stem's number."""

    __slots__ = ("job", "living", "opened", "stem")

    def __init__(self, job: PrefillJob, sequences: list[Sequence]) -> None:
        self.job = job
        self.living = {each.key.of: each for each in sequences}  # samples whose end this worker still has to report
        self.stem = sequences[0]  # computes the prompt for all, and holds its blocks; id 0: it waits in a line
        self.opened = False  # a handoff is open

    def stages(self, now: float) -> Stages:
        """Returns what the way took so far; `now` is when the first tokens came (server time, s)."""
        begun = self.stem.admitted_at
        cached = min(self.stem.cached_tokens, self.stem.prompt_tokens)
        return Stages((begun - self.job.queued_at) * 1000, (now - begun) * 1000, cached_tokens=cached)


class Going(NamedTuple):
    """Holds the samples of a prompt that go on, the prompt's scores if the first of them has those, and its state."""

    branches: list[Branch]
    prompt_scores: Scores | None
    state: bytes


class PrefillPolicy:
    """Plays the prefill role in the engine loop: see `worker.engine_loop.RolePolicy`."""

    def __init__(self, parts: WorkerParts) -> None:
        self._scheduler = parts.scheduler
        self._blocks = parts.blocks
        self._vocab_size = parts.vocab_size
        self._clock = parts.life.clock
        self._adapters = parts.life.adapters
        self._tell_io = parts.life.outbox.post
        self._groups = parts.spec.groups
        self._answering = Answering(parts, "prefill")
        self._by_key: dict[SampleKey, SequenceGroup] = {}  # groups by each of their living samples
        self._by_number: dict[int, SequenceGroup] = {}  # groups that the scheduler has, by their stem's id
        self._pinned: dict[int, list[list[int]]] = {}  # blocks with I/O references of each KV group, by handoff
        share = parts.life.config.transfer.waiting_share
        self._shares = [max(1, int(share * pool.total)) for pool in parts.blocks.groups]  # blocks of each KV group
        self._held: dict[str, list[int]] = {}  # blocks of each KV group that are on their way, by decode worker
        self._lines: dict[str, Line] = {}  # by decode worker, the stems of groups that wait for room in its share
        self._waiting: dict[Sequence, SequenceGroup] = {}  # those groups, by their stems
        self._counts = {"handoffs": 0, "bytes": 0}  # that decode workers have accepted

    # receive --------------------------------------------------------------------------------------------------------

    def receive(self, event: Any, now: float) -> None:
        """Takes an event of the I/O thread."""
        match event:
            case Submit(job=job):
                for attempt in job.attempts():
                    self._kill(attempt)  # a lower attempt whose Cancel was lost
                if isinstance(job, PrefillJob):
                    self._submit(job)
                else:
                    self._answering.submit(job)
            case Kill(key=key):
                self._kill(key)
            case Closed():
                self._closed(event)
            case Unpinned(handoff=handoff):
                self._unpin(handoff)

    def _submit(self, job: PrefillJob) -> None:
        if not self._adapters.has(job.prompt.adapter):
            self._refuse(job, REASON_NO_ADAPTER, "this worker lacks the request's adapter", retryable=True)
            return
        try:
            check_tokens(job.prompt.token_ids, self._vocab_size)
            group = SequenceGroup(job, [Sequence.of_job(job, key, hand_off=True) for key in job.attempts()])
        except MessageError as error:
            self._refuse(job, "malformed", str(error), retryable=False)
            return
        self._by_key |= dict.fromkeys(group.living, group)
        self._waiting[group.stem] = group
        self._lines.setdefault(job.decode_epoch, Line()).insert(group.stem)
        self._advance(job.decode_epoch)

    def _refuse(self, job: PrefillJob, reason: str, message: str, *, retryable: bool) -> None:
        for key in job.attempts():
            self._tell_io(Fail(key, AttemptFailure(reason, message, retryable)))

    def _advance(self, peer: str) -> None:
        """Gives the scheduler the groups whose turn it is in a decode worker's line, while its share has room."""
        line, now = self._lines[peer], self._clock.now()
        while len(line) and self._fits(self._waiting[stem := line.first(now)]):
            line.shares.charge(stem.prompt.tenant, len(stem.tokens))
            line.remove(stem)
            self._add(self._waiting.pop(stem))
        if not len(line):
            del self._lines[peer]

    def _fits(self, group: SequenceGroup) -> bool:
        held = self._held.get(group.job.decode_epoch)
        peers = len(self._held.keys() | self._lines.keys())
        return held is None or all(
            own + need <= min(share, pool.total // peers)
            for own, need, share, pool in zip(held, self._need(group), self._shares, self._blocks.groups, strict=True)
        )

    def _need(self, group: SequenceGroup) -> list[int]:
        return self._blocks.needed(len(group.job.prompt.token_ids))

    def _add(self, group: SequenceGroup) -> None:
        group.stem, *branches = group.living.values()
        try:
            self._scheduler.add(group.stem, branches)
        except CapacityError as error:
            self._fail(group, group.living.values(), "capacity", str(error), retryable=False)
        else:
            self._by_number[group.stem.id] = group
            peer = group.job.decode_epoch
            held = self._held.get(peer, [0] * len(self._groups))
            self._held[peer] = [own + need for own, need in zip(held, self._need(group), strict=True)]

    def _kill(self, key: AttemptKey) -> None:
        self._answering.kill(key)
        group = self._by_key.get(key.of)
        if group is not None and group.job.attempt <= key.attempt:
            self._leave(group, key.of, "cancelled")

    def _closed(self, closed: Closed) -> None:
        group = self._by_number.get(closed.handoff)
        if group is None:
            return
        group.opened = False
        if closed.outcome == "accepted":
            self._counts["handoffs"] += 1
            self._counts["bytes"] += closed.bytes
            for sample, sequence in list(group.living.items()):
                self._tell_io(Phase(sequence.key, STATE_HANDED_OFF))
                self._leave(group, sample, "accepted")
        else:
            reason = closed.reason
            self._fail(group, group.living.values(), reason, f"handoff: {reason}", retryable=closed.retryable)

    def _unpin(self, handoff: int) -> None:
        for group, blocks in enumerate(self._pinned.pop(handoff)):
            self._blocks.release_io(group, blocks)

    # plan -----------------------------------------------------------------------------------------------------------

    def admitted(self, sequences: list[Sequence], now: float) -> None:
        """Asks decode workers for room for these prompts, which have their blocks and will be computed meanwhile."""
        for stem in sequences:
            if (group := self._by_number.get(stem.id)) is None:
                continue  # it is answered here
            for each in group.living.values():
                self._tell_io(Phase(each.key, "prefill"))
            if stem.end_length <= len(stem.tokens) + 1:
                continue  # its first token is its last
            self._pinned[stem.id] = [[] for _ in self._groups]
            blocks = tuple([self._pin(group, number) for number in range(len(self._groups))])
            group.opened = True
            samples = tuple(key.sample for key in group.living)
            deadline, due = self._clock.local(group.job.deadline), self._clock.local(stem.due)
            ids = packed(group.job.prompt.token_ids)
            self._tell_io(OpenHandoff(stem.id, group.job, ids, samples, deadline, due, blocks))

    def _pin(self, group: SequenceGroup, number: int) -> list[int]:
        """Keeps the blocks of a KV group that will move, and returns its table; [] while not all of them are taken."""
        needed = self._groups[number].needed_blocks(len(group.job.prompt.token_ids))
        table = group.stem.blocks[number]
        if len(table) < needed.stop:
            return []
        pinned = self._pinned[group.stem.id][number] = table[needed.start : needed.stop]
        self._blocks.hold_io(number, pinned)
        return list(table)

    # run ------------------------------------------------------------------------------------------------------------

    def layer_written(self, plan: Plan, group: int, layer: int) -> None:
        """Lets a layer's full blocks leave, with the last chunk all of them: this step has stored its KV in the pool.

        Blocks before the step's own were computed by earlier steps, or found here: these leave with the first chunk.
        """
        for work in plan.works:
            samples = self._by_number.get(work.sequence)
            if samples is None or not samples.opened:
                continue
            if not self._pinned[work.sequence][group]:
                blocks = self._pin(samples, group)
                if not blocks:
                    continue  # nothing of this window moves yet
                self._tell_io(BlocksTaken(work.sequence, group, blocks))
            end = work.start + len(work.token_ids)
            last = end >= len(samples.job.prompt.token_ids)
            size = self._groups[group].block_tokens
            upto = blocks_for(end, size) if last else end // size
            self._tell_io(LayerReady(work.sequence, group, layer, upto))

    # send -----------------------------------------------------------------------------------------------------------

    def progressed(self, progress: list[Progress], now: float) -> None:
        """Sends first tokens straight to the gateways, and commits the samples that go on to their decode worker."""
        self._answering.progressed([item for item in progress if not item.sequence.hand_off], now)
        emitted: list[Emitted] = []
        going: dict[SequenceGroup, Going] = {}
        for item in progress:
            if not item.sequence.hand_off:
                continue
            key = item.sequence.key
            group = self._by_key[key.of]
            if item.failed:
                reason = reason_of(item.failed)
                self._fail(group, [item.sequence], reason, item.failed, retryable=may_do_better(item.failed))
                continue
            stages = group.stages(now)
            scores, prompt_scores = item.scores, item.prompt_scores
            emitted.append(Emitted(key, item.index, item.tokens, item.finish, stages, scores, prompt_scores))
            if item.finish is None:
                of_group = going.setdefault(group, Going([], prompt_scores, item.state))
                of_group.branches.append(Branch(key.sample, item.tokens, scores))
            else:
                self._leave(group, key.of, "done")
        for group, of_group in going.items():
            self._commit(group, of_group, now)
        if emitted:
            self._tell_io(Emit(emitted))

    def _commit(self, group: SequenceGroup, going: Going, now: float) -> None:
        stages, at = group.stages(now), self._clock.local(now)
        self._tell_io(CommitHandoff(group.stem.id, going.branches, stages, at, going.prompt_scores, going.state))
        samples = {branch.sample for branch in going.branches}
        for each in group.living.values():
            if each.key.sample in samples:
                self._tell_io(Phase(each.key, STATE_HANDING_OFF))

    def expired(self, sequences: list[Sequence], now: float) -> None:
        """Fails the groups of these sequences, whose deadline has passed: all samples of a group have the same one."""
        self._answering.expired(sequences)
        text = "the request's deadline passed on the prefill worker"
        for sequence in sequences:
            if (group := self._by_number.get(sequence.id)) is not None:  # a stem
                self._fail(group, group.living.values(), "deadline", text, retryable=False)

    def leave(self, reason: str) -> None:
        """Fails all that is here, because the worker stops; another one can compute it."""
        self._answering.stop(reason)
        for group in dict.fromkeys(self._by_key.values()):
            self._fail(group, group.living.values(), reason, "the prefill worker is leaving", retryable=True)

    def busy(self) -> bool:
        """Tells whether any sample is here, or any block that a frame may still be read from."""
        return bool(self._by_key or self._pinned or self._answering.by_stem)

    def load(self) -> WorkerLoad:
        """Counts what this worker holds and has done."""
        load = self._scheduler.load()
        in_lines = [
            Ahead(len(stem.tokens), 0, owner_of(stem.prompt.tenant, stem.prompt.weight)) for stem in self._waiting
        ]
        waiting = load.waiting + len(in_lines)
        if in_lines:
            load = structs.replace(load, backlog=load.backlog.and_prompts(in_lines))
        quarantined = self._blocks.quarantined_count
        held = HeldBlocks(pinned=self._blocks.pinned_count - quarantined, quarantined=quarantined)
        return load.with_counts(waiting, self._counts["handoffs"], self._counts["bytes"], held)

    def adapters(self) -> set[str]:
        """Returns the digests of the adapters that something here uses."""
        return self._answering.adapters() | {group.job.prompt.adapter for group in self._by_key.values()}

    # ends -----------------------------------------------------------------------------------------------------------

    def _fail(
        self, group: SequenceGroup, sequences: Iterable[Sequence], reason: str, message: str, *, retryable: bool
    ) -> None:
        for sequence in list(sequences):
            self._tell_io(Fail(sequence.key, AttemptFailure(reason, message, retryable)))
            self._leave(group, sequence.key.of, reason)

    def _leave(self, group: SequenceGroup, key: SampleKey, reason: str) -> None:
        """Lets a sample go whose end was reported, or need not be by this worker. The last one ends its group."""
        sequence = group.living.pop(key)
        del self._by_key[key]
        if sequence.id and sequence.state is not SequenceState.PARKED:  # the stem parks for those that go on
            self._scheduler.release(sequence)
        if not group.living:
            self._end(group, reason)

    def _end(self, group: SequenceGroup, reason: str) -> None:
        """Ends a group, whose prompt this worker is done with; the transfer may still hold its blocks."""
        number, peer = group.stem.id, group.job.decode_epoch
        if group.opened:
            self._tell_io(AbortHandoff(number, reason))
        if number:
            del self._by_number[number]
            self._scheduler.release(group.stem)
            self._held[peer] = [own - need for own, need in zip(self._held[peer], self._need(group), strict=True)]
            if not any(self._held[peer]):
                del self._held[peer]
        elif self._waiting.pop(group.stem, None) is not None:
            self._lines[peer].remove(group.stem)
        else:
            return  # it could never fit
        if peer in self._lines:
            self._advance(peer)
