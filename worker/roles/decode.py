"""The decode role: receives the KV of prompts from prefill workers, and decodes them with short-path requests.

A landing prompt waits for blocks in the same queue as short-path jobs and preempted sequences. After it has landed,
each of its samples is a sequence of the running batch, and its tokens go to its gateway step by step.
"""

from typing import Any

from msgspec import structs

from contracts.errors import CapacityError, MessageError
from contracts.ids import SampleKey
from contracts.messages.gateway import REASON_NO_ADAPTER, Emitted
from contracts.messages.job import DecodeJob, PrefillJob
from engine.schedule.sequence import Sequence
from infra.redis.worker_load import HeldBlocks, WorkerLoad
from kvtransfer.events import BlocksGranted, BlocksRefused, BlocksWanted, Dropped, HandoffOver, Landed
from kvtransfer.handoff import HandoffKey
from worker.events import Begin, Kill, Phase
from worker.policy_parts import PolicyParts, check_tokens
from worker.roles.answering import Answering
from worker.roles.groups import SequenceGroup


class DecodePolicy(Answering):
    """The decode role's `worker.engine_loop.RolePolicy`."""

    def __init__(self, parts: PolicyParts) -> None:
        super().__init__(parts, "decode")
        self._by_handoff: dict[HandoffKey, SequenceGroup] = {}
        self._counts = {"handoffs": 0, "bytes": 0}  # that have landed

    def receive(self, event: Any, now: float) -> None:
        match event:
            case DecodeJob() as job:
                self.submit(job)
            case PrefillJob() as job:
                self.misdirected(job)
            case Kill(key=key):
                self.kill(key)
            case BlocksWanted():
                self._reserve(event, now)
            case Landed():
                self._land(event, now)
            case Dropped(key=key):
                if (group := self._by_handoff.get(key)) is not None:
                    self._end(group)

    def _reserve(self, wanted: BlocksWanted, now: float) -> None:
        """Queues a prompt that needs blocks for a handoff, or refuses it."""
        opened, handoff = wanted.open, wanted.key
        keys = [key for key in opened.attempts() if key.sample in wanted.samples]
        for key in keys:
            self.kill(key)
        keys = [key for key in keys if key.of not in self._by_sample]  # the other samples have a higher attempt here
        if not keys:
            self._tell_io(BlocksRefused(handoff, "superseded", f"attempt {opened.attempt} comes too late", False))
            return
        if not self._adapters.has(opened.prompt.adapter):
            self._tell_io(
                BlocksRefused(handoff, REASON_NO_ADAPTER, "the decode worker lacks the request's adapter", True)
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
            self._add(group)
            self._by_handoff[handoff] = group
        except MessageError as error:
            self._tell_io(BlocksRefused(handoff, "malformed", str(error), False))
        except CapacityError as error:
            self._tell_io(BlocksRefused(handoff, "capacity", str(error), False))

    def _land(self, landed: Landed, now: float) -> None:
        group = self._by_handoff.get(landed.key)
        if group is None:
            return
        commit, parent = landed.commit, group.parent
        group.landed = True
        self._counts["handoffs"] += 1
        self._counts["bytes"] += landed.bytes
        branches = {SampleKey(parent.key.request, branch.sample): branch for branch in commit.branches}
        branches = {sample: branch for sample, branch in branches.items() if sample in group.living}
        if not branches:
            self._end(group)
            return
        for sample in [sample for sample in group.living if sample not in branches]:
            self._end_sample(group, sample, "done")
        handoff_ms = (now - group.queued_at) * 1000  # from the Open to the last byte
        stages = structs.replace(
            commit.stages,
            handoff_ms=handoff_ms,
            handoff_bytes=landed.bytes,
            land_ms=landed.land_ms,
            exposed_ms=commit.stages.exposed_ms + landed.land_ms,
        )
        prompt_scores = commit.prompt_scores  # sent with one sample
        for sample, branch in branches.items():
            key = group.living[sample].key
            emitted = Emitted(key, commit.index, branch.emitted, None, stages, branch.scores, prompt_scores)
            prompt_scores = None
            self._tell_io(Begin(parent.gateway, parent.deadline, emitted))
            self._tell_io(Phase(key, "decode"))
        try:
            for branch in branches.values():
                check_tokens(branch.emitted, self._vocab_size)
            tokens = {branch.sample: branch.emitted for branch in branches.values()}
            self._scheduler.adopt(parent, tokens, commit.sampling, commit.limits, commit.state)
        except MessageError as error:
            self._fail(group, branches, "malformed", str(error), retryable=False)
        except CapacityError as error:
            self._fail(group, branches, "capacity", str(error), retryable=False)

    def admitted(self, sequences: list[Sequence], now: float) -> None:
        """Grants blocks to prompts whose KV will land, except for KV that is cached here."""
        for parent in sequences:
            handoff = self._by_parent[parent.id].handoff
            if handoff is not None:
                blocks = tuple(list(table) for table in parent.blocks)
                self._tell_io(BlocksGranted(handoff, blocks, parent.held_blocks))

    def leave(self, reason: str) -> None:
        """Fails all samples, because the worker stops. Prefill workers report handoffs that have not landed."""
        super().leave(reason)
        for handoff, group in list(self._by_handoff.items()):
            self._tell_io(BlocksRefused(handoff, reason, "the decode worker is leaving", True))
            self._end(group)

    def load(self) -> WorkerLoad:
        load = self._scheduler.load()
        return load.with_counts(load.waiting, self._counts["handoffs"], self._counts["bytes"], self._held())

    def _held(self) -> HeldBlocks:
        """Counts the blocks that KV is landing in: quarantined if all samples of their group are dead."""
        reserved = quarantined = 0
        for group in self._by_handoff.values():
            if group.landed:
                continue
            parent = group.parent
            blocks = sum(len(table) - held for table, held in zip(parent.blocks, parent.held_blocks, strict=True))
            reserved += blocks if group.living else 0
            quarantined += 0 if group.living else blocks
        return HeldBlocks(reserved=reserved, quarantined=quarantined)

    def _end(self, group: SequenceGroup) -> None:
        super()._end(group)
        if group.handoff is not None:
            del self._by_handoff[group.handoff]
            if group.landed:
                self._tell_io(HandoffOver(group.handoff))
