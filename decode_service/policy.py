"""Decides what a decode worker does with a sequence: takes its KV blocks, then turns them into tokens with all others.

A landing prompt waits for room in the same line as short-path jobs and preempted sequences. From its landing on, each
of its samples is a sequence of the running batch, and its tokens go to its gateway step by step.
"""

import logging
from typing import Any

from msgspec import structs

from contracts.errors import CapacityError, MessageError
from contracts.ids import SampleKey
from contracts.messages.gateway import REASON_NO_ADAPTER, Emitted
from contracts.messages.job import DecodeJob
from engine.schedule.progress import Progress
from engine.schedule.sequence import Sequence
from infra.redis.records import HeldBlocks, WorkerLoad
from kvtransfer.events import Dropped, HandoffOver, Landed, RoomGranted, RoomRefused, RoomWanted
from kvtransfer.handoff import HandoffKey
from worker.answering import Answering, SequenceGroup
from worker.events import Begin, Kill, Phase, Submit
from worker.role import WorkerParts, check_tokens

log = logging.getLogger("baton.decode")


class DecodePolicy:
    """Plays the decode role in the engine loop: see `worker.engine_loop.RolePolicy`."""

    def __init__(self, parts: WorkerParts) -> None:
        self._scheduler = parts.scheduler
        self._vocab_size = parts.vocab_size
        self._adapters = parts.life.adapters
        self._tell_io = parts.life.outbox.post
        self._answering = Answering(parts, "decode", self._over)
        self._by_handoff: dict[HandoffKey, SequenceGroup] = {}
        self._counts = {"handoffs": 0, "bytes": 0}  # that have landed

    # receive --------------------------------------------------------------------------------------------------------

    def receive(self, event: Any, now: float) -> None:
        """Takes an event of the I/O thread."""
        match event:
            case Submit(job=DecodeJob() as job):
                self._answering.submit(job)
            case Submit(job=job):
                self._answering.misdirected(job)
            case Kill(key=key):
                self._answering.kill(key)
            case RoomWanted():
                self._want(event, now)
            case Landed():
                self._land(event, now)
            case Dropped(key=key):
                if (group := self._by_handoff.get(key)) is not None:
                    self._answering.end(group)

    def _want(self, wanted: RoomWanted, now: float) -> None:
        """Queues a prompt for which a prefill worker asks for room, or refuses it."""
        opened, handoff = wanted.open, wanted.key
        keys = [key for key in opened.attempts() if key.sample in wanted.samples]
        for key in keys:
            self._answering.kill(key)
        keys = [key for key in keys if key.of not in self._answering.by_key]  # the others have a higher attempt here
        if not keys:
            self._tell_io(RoomRefused(handoff, "superseded", f"attempt {opened.attempt} comes too late", False))
            return
        if not self._adapters.has(opened.prompt.adapter):
            self._tell_io(
                RoomRefused(handoff, REASON_NO_ADAPTER, "the decode worker lacks the request's adapter", True)
            )
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
            group = SequenceGroup(members, handoff, now)
            self._answering.add(group)
            self._by_handoff[handoff] = group
        except MessageError as error:
            self._tell_io(RoomRefused(handoff, "malformed", str(error), False))
        except CapacityError as error:
            self._tell_io(RoomRefused(handoff, "capacity", str(error), False))

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
            self._answering.end(group)
            return
        for sample in [sample for sample in group.living if sample not in branches]:
            self._answering.leave(group, sample)
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
            self._answering.fail(group, branches, "malformed", str(error), retryable=False)
        except CapacityError as error:
            self._answering.fail(group, branches, "capacity", str(error), retryable=False)

    # plan -----------------------------------------------------------------------------------------------------------

    def admitted(self, sequences: list[Sequence], now: float) -> None:
        """Grants room to those of these sequences whose KV is to land: all of it but what is here already."""
        for stem in sequences:
            handoff = self._answering.by_stem[stem.id].handoff
            if handoff is not None:
                blocks = tuple(list(table) for table in stem.blocks)
                self._tell_io(RoomGranted(handoff, blocks, stem.held_blocks))

    # send -----------------------------------------------------------------------------------------------------------

    def progressed(self, progress: list[Progress], now: float) -> None:
        """Sends the tokens of a step to the gateways, and lets go what has ended."""
        self._answering.progressed(progress, now)

    def expired(self, sequences: list[Sequence], now: float) -> None:
        """Fails these sequences, whose deadline passed."""
        self._answering.expired(sequences)

    def leave(self, reason: str) -> None:
        """Fails all that is here, because the worker stops; another can go on. Prefill workers report what lands."""
        self._answering.stop(reason)
        for handoff, group in list(self._by_handoff.items()):
            self._tell_io(RoomRefused(handoff, reason, "the decode worker is leaving", True))
            self._answering.end(group)

    def busy(self) -> bool:
        """Tells whether any sequence, or any block that KV may land in, is here."""
        return bool(self._answering.by_stem)

    def load(self) -> WorkerLoad:
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
        return self._answering.adapters()

    def _over(self, group: SequenceGroup) -> None:
        """Forgets the handoff of a group that has ended."""
        if group.handoff is not None:
            del self._by_handoff[group.handoff]
            if group.landed:
                self._tell_io(HandoffOver(group.handoff))
