"""Decides what a decode worker does with a sequence: takes its KV blocks, then turns them into tokens with all others.

A landing prompt waits for room in the same line as short-path jobs and preempted sequences. From its landing on, each
of its samples is a sequence of the running batch, and its tokens go to its gateway step by step.
"""

import logging
from collections.abc import Iterable
from typing import Any

from msgspec import structs

from core.errors import CapacityError, MessageError
from core.ids import AttemptKey, SampleKey
from core.messages.gateway import NO_ADAPTER, Emitted, Stages
from core.messages.job import DecodeJob
from core.redis.records import HeldBlocks, Load
from engine.schedule.progress import Progress, may_do_better, reason_of
from engine.schedule.sequence import Sequence
from kvtransfer.events import Dropped, HandoffOver, Landed, RoomGranted, RoomRefused, RoomWanted
from kvtransfer.handoff import HandoffKey
from worker.events import Begin, Emit, Fail, Failure, Kill, Phase, Submit
from worker.role import Parts, check_tokens

log = logging.getLogger("baton.decode")


class SequenceGroup:
    """Keeps the samples of one prompt on this worker, and the handoff that brings its KV, if one does."""

    __slots__ = ("handoff", "landed", "living", "members", "queued_at")

    def __init__(self, members: list[Sequence], handoff: HandoffKey | None, queued_at: float) -> None:
        self.members = members  # the first is the stem, which the others branch off from
        self.living = {each.key.of: each for each in members}  # samples that have not ended
        self.handoff = handoff
        self.landed = handoff is None  # nothing can land in its blocks any more
        self.queued_at = queued_at  # server time, s

    @property
    def stem(self) -> Sequence:
        """Returns the sequence that has the prompt's blocks until all have begun."""
        return self.members[0]


class DecodePolicy:
    """Plays the decode role in the engine loop: see `worker.engine_loop.Policy`."""

    def __init__(self, parts: Parts) -> None:
        self._scheduler = parts.scheduler
        self._vocab_size = parts.vocab_size
        self._adapters = parts.life.adapters
        self._tell_io = parts.life.outbox.post
        self._by_key: dict[SampleKey, SequenceGroup] = {}  # groups by each of their living samples
        self._by_stem: dict[int, SequenceGroup] = {}  # groups by their stem's id
        self._by_handoff: dict[HandoffKey, SequenceGroup] = {}
        self._counts = {"handoffs": 0, "bytes": 0}  # that have landed

    # receive --------------------------------------------------------------------------------------------------------

    def receive(self, event: Any, now: float) -> None:
        """Takes an event of the I/O thread."""
        match event:
            case Submit(job=DecodeJob() as job):
                self._submit(job)
            case Submit(job=job):
                self._refuse(job.attempts(), "misdirected", "a decode worker takes no prefill jobs", retryable=True)
            case Kill(key=key):
                self._kill(key)
            case RoomWanted():
                self._want(event, now)
            case Landed():
                self._land(event, now)
            case Dropped(key=key):
                if (group := self._by_handoff.get(key)) is not None:
                    self._end(group)

    def _submit(self, job: DecodeJob) -> None:
        keys = job.attempts()
        for key in keys:
            self._kill(key)  # a lower attempt whose Cancel was lost
        late = [key for key in keys if key.of in self._by_key]
        if late:  # a higher attempt lands here, which the ledger does not know yet
            self._refuse(late, "superseded", f"attempt {job.attempt} comes too late", retryable=False)
            keys = [key for key in keys if key not in late]
        if not keys:
            return
        if not self._adapters.has(job.prompt.adapter):
            self._refuse(keys, NO_ADAPTER, "this worker lacks the request's adapter", retryable=True)
            return
        try:
            check_tokens(job.prompt.token_ids, self._vocab_size)
            members = [Sequence.of_job(job, key, hand_off=False) for key in keys]
            self._add(SequenceGroup(members, None, job.queued_at))
        except MessageError as error:
            self._refuse(keys, "malformed", str(error), retryable=False)
        except CapacityError as error:
            self._refuse(keys, "capacity", str(error), retryable=False)

    def _refuse(self, keys: Iterable[AttemptKey], reason: str, message: str, *, retryable: bool) -> None:
        for key in keys:
            self._tell_io(Fail(key, Failure(reason, message, retryable)))

    def _want(self, wanted: RoomWanted, now: float) -> None:
        """Queues a prompt for which a prefill worker asks for room, or refuses it."""
        opened, handoff = wanted.open, wanted.key
        keys = [key for key in opened.attempts() if key.sample in wanted.samples]
        for key in keys:
            self._kill(key)
        keys = [key for key in keys if key.of not in self._by_key]  # the others have a higher attempt here
        if not keys:
            self._tell_io(RoomRefused(handoff, "superseded", f"attempt {opened.attempt} comes too late", False))
            return
        if not self._adapters.has(opened.prompt.adapter):
            self._tell_io(RoomRefused(handoff, NO_ADAPTER, "the decode worker lacks the request's adapter", True))
            return
        deadline, due = now + opened.remaining_ms / 1000, now + opened.due_ms / 1000
        try:
            prompt = opened.whole_prompt()
            check_tokens(prompt.token_ids, self._vocab_size)
            sent = opened.form.block_tokens
            members = [
                Sequence(key, opened.gateway, prompt, deadline, landing=True, due=due, sent_block_tokens=sent)
                for key in keys
            ]
            self._add(SequenceGroup(members, handoff, now))
        except MessageError as error:
            self._tell_io(RoomRefused(handoff, "malformed", str(error), False))
        except CapacityError as error:
            self._tell_io(RoomRefused(handoff, "capacity", str(error), False))

    def _add(self, group: SequenceGroup) -> None:
        self._scheduler.add(group.stem, group.members[1:])
        self._by_stem[group.stem.id] = group
        self._by_key |= dict.fromkeys(group.living, group)
        if group.handoff is not None:
            self._by_handoff[group.handoff] = group

    def _kill(self, key: AttemptKey) -> None:
        group = self._by_key.get(key.of)
        if group is not None and group.stem.key.attempt <= key.attempt:
            self._leave(group, key.of)

    def _land(self, landed: Landed, now: float) -> None:
        """Lets the samples of a landed prompt run from the next step on, but for those that ended or were killed."""
        group = self._by_handoff.get(landed.key)
        if group is None:
            return
        commit, stem = landed.commit, group.stem
        group.landed = True
        self._counts["handoffs"] += 1
        self._counts["bytes"] += landed.bytes
        branches = {SampleKey(stem.key.request, branch.sample): branch for branch in commit.branches}
        branches = {sample: branch for sample, branch in branches.items() if sample in group.living}
        if not branches:
            self._end(group)
            return
        for sample in [sample for sample in group.living if sample not in branches]:
            self._leave(group, sample)
        handoff_ms = (now - group.queued_at) * 1000  # from the Open to the last byte
        stages = structs.replace(
            commit.stages,
            handoff_ms=handoff_ms,
            handoff_bytes=landed.bytes,
            land_ms=landed.land_ms,
            exposed_ms=commit.stages.exposed_ms + landed.land_ms,
        )
        prompt_scores = commit.prompt_scores  # one sample has them
        for sample, branch in branches.items():
            key = group.living[sample].key
            emitted = Emitted(key, commit.index, branch.emitted, None, stages, branch.scores, prompt_scores)
            prompt_scores = None
            self._tell_io(Begin(stem.gateway, stem.deadline, emitted))
            self._tell_io(Phase(key, "decode"))
        try:
            for branch in branches.values():
                check_tokens(branch.emitted, self._vocab_size)
            tokens = {branch.sample: branch.emitted for branch in branches.values()}
            self._scheduler.adopt(stem, tokens, commit.sampling, commit.limits, commit.state)
        except MessageError as error:
            self._fail(group, branches, "malformed", str(error), retryable=False)
        except CapacityError as error:
            self._fail(group, branches, "capacity", str(error), retryable=False)

    # plan -----------------------------------------------------------------------------------------------------------

    def admitted(self, sequences: list[Sequence], now: float) -> None:
        """Grants room to those of these sequences whose KV is to land: all of it but what is here already."""
        for stem in sequences:
            handoff = self._by_stem[stem.id].handoff
            if handoff is not None:
                blocks = tuple(list(table) for table in stem.blocks)
                self._tell_io(RoomGranted(handoff, blocks, stem.held_blocks))

    # send -----------------------------------------------------------------------------------------------------------

    def progressed(self, progress: list[Progress], now: float) -> None:
        """Sends the tokens of a step to the gateways, and lets go what has ended."""
        emitted = []
        for item in progress:
            sequence = item.sequence
            group = self._by_key[sequence.key.of]
            if item.failed:
                reason = reason_of(item.failed)
                self._fail(group, [sequence.key.of], reason, item.failed, retryable=may_do_better(item.failed))
                continue
            stages = None
            if group.handoff is None and sequence.first_token_at == now:
                begun = group.stem.admitted_at
                cached = min(group.stem.cached_tokens, sequence.prompt_tokens)
                stages = Stages((begun - group.queued_at) * 1000, (now - begun) * 1000, cached_tokens=cached)
            scores, prompt_scores = item.scores, item.prompt_scores
            emitted.append(Emitted(sequence.key, item.index, item.tokens, item.finish, stages, scores, prompt_scores))
            if item.finish is not None:
                self._leave(group, sequence.key.of)
        if emitted:
            self._tell_io(Emit(emitted))

    def expired(self, sequences: list[Sequence], now: float) -> None:
        """Fails these sequences, whose deadline passed. What lands is left to the transfer, which may write to it."""
        for sequence in sequences:
            sample = sequence.key.of
            group = self._by_key.get(sample)
            if group is not None and group.landed and group.living[sample] is sequence:
                text = "the request's deadline passed on the decode worker"
                self._fail(group, [sample], "deadline", text, retryable=False)

    def leave(self, reason: str) -> None:
        """Fails all that is here, because the worker stops; another can go on. Prefill workers report what lands."""
        message = "the decode worker is leaving"
        for group in list(self._by_stem.values()):
            if group.landed:
                self._fail(group, group.living, reason, message, retryable=True)
            else:
                assert group.handoff is not None
                self._tell_io(RoomRefused(group.handoff, reason, message, True))
                self._end(group)

    def busy(self) -> bool:
        """Tells whether any sequence, or any block that KV may land in, is here."""
        return bool(self._by_stem)

    def load(self) -> Load:
        """Counts what this worker holds and has done."""
        load = self._scheduler.load()
        return load.with_counts(load.waiting, self._counts["handoffs"], self._counts["bytes"], self._held())

    def _held(self) -> HeldBlocks:
        """Counts blocks whose KV is on its way here: quarantined where all samples are dead, and nobody wants it."""
        reserved = quarantined = 0
        for group in self._by_handoff.values():
            if group.landed:
                continue
            stem = group.stem
            blocks = sum(len(table) - held for table, held in zip(stem.blocks, stem.held_blocks, strict=True))
            reserved += blocks if group.living else 0
            quarantined += 0 if group.living else blocks
        return HeldBlocks(reserved=reserved, quarantined=quarantined)

    def adapters(self) -> set[str]:
        """Returns the digests of the adapters that something here uses."""
        return {group.stem.prompt.adapter for group in self._by_stem.values()}

    # ends -----------------------------------------------------------------------------------------------------------

    def _fail(
        self, group: SequenceGroup, samples: Iterable[SampleKey], reason: str, message: str, *, retryable: bool
    ) -> None:
        for sample in list(samples):
            self._tell_io(Fail(group.living[sample].key, Failure(reason, message, retryable)))
            self._leave(group, sample)

    def _leave(self, group: SequenceGroup, sample: SampleKey) -> None:
        """Lets a sample go that is over. The last one ends its group, unless bytes may still land in its blocks.

        The transfer is told of every cancel too: it drops a handoff when all its samples are dead.
        """
        sequence = group.living.pop(sample)
        del self._by_key[sample]
        if group.living:
            self._scheduler.release(sequence)
        elif group.landed:
            self._end(group)

    def _end(self, group: SequenceGroup) -> None:
        for sample in group.living:
            del self._by_key[sample]
        for sequence in group.members:
            self._scheduler.release(sequence)
        del self._by_stem[group.stem.id]
        if group.handoff is not None:
            del self._by_handoff[group.handoff]
            if group.landed:
                self._tell_io(HandoffOver(group.handoff))
