"""The prefill role: computes a prompt once, draws a first token for each sample, and hands its KV to a decode worker.

The prompt's blocks are held twice: by the parent sequence until the handoff is closed, and by the transfer until no
frame can be read from them any more. Prompts for one decode worker hold at most a share of the pool, and with several
decode workers at most an equal share each, so that a worker short of blocks does not block the others. Further prompts
for that worker wait in a separate queue, and prompts for other workers pass them.

While no decode worker can be reached, this worker gets whole requests and answers them (`worker.roles.answering`).
"""

from typing import Any, NamedTuple

from msgspec import structs

from contracts.errors import CapacityError
from contracts.kv.spec import blocks_for
from contracts.messages.gateway import STATE_HANDED_OFF, STATE_HANDING_OFF
from contracts.messages.handoff import Branch
from contracts.messages.job import DecodeJob, PrefillJob
from contracts.messages.packed_ids import packed
from contracts.scores import Scores
from engine.plan import StepPlan
from engine.schedule.progress import SequenceProgress
from engine.schedule.sequence import Sequence, SequenceState
from engine.schedule.waiting_queue import WaitingQueue
from infra.redis.worker_load import HeldBlocks, WorkerLoad
from kvtransfer.events import AbortHandoff, BlocksTaken, Closed, CommitHandoff, LayerReady, OpenHandoff, Unpinned
from pricing.routes.backlog import PromptWork, owner_of
from worker.events import Emit, Kill, Phase
from worker.policy_parts import PolicyParts
from worker.roles.answering import Answering
from worker.roles.groups import SequenceGroup, SequenceGroups


class PrefillGroup(SequenceGroup):
    """The samples of a prompt that is handed off. The handoff's number is the id of the parent sequence."""

    __slots__ = ("job", "opened")

    def __init__(self, job: PrefillJob, members: list[Sequence]) -> None:
        super().__init__(members, None, job.queued_at)
        self.job = job
        self.opened = False  # a handoff is open


class FirstTokens(NamedTuple):
    """First tokens of the samples that continue on a decode worker."""

    branches: list[Branch]
    prompt_scores: Scores | None  # if the first branch carries them
    state: bytes  # hidden state of the prompt's last token, see `Commit`


class PrefillPolicy(SequenceGroups[PrefillGroup]):
    """The prefill role's `worker.engine_loop.RolePolicy`."""

    def __init__(self, parts: PolicyParts) -> None:
        super().__init__(parts, "prefill")
        self._blocks = parts.blocks
        self._clock = parts.clock
        self._kv_groups = parts.spec.groups
        self._answering = Answering(parts, "prefill")
        self._pinned: dict[int, list[list[int]]] = {}  # blocks with I/O references of each KV group, by handoff
        self._max_blocks = [max(1, int(parts.waiting_share * pool.total)) for pool in parts.blocks.groups]
        """Blocks of each KV group that prompts for one decode worker may hold."""
        self._held: dict[str, list[int]] = {}  # blocks of each KV group of unfinished handoffs, by decode worker
        self._queues: dict[str, WaitingQueue] = {}  # by decode worker: parents of the groups that wait for its share
        self._waiting: dict[Sequence, PrefillGroup] = {}  # the groups in `_queues`, by their parents
        self._counts = {"handoffs": 0, "bytes": 0}  # that decode workers have accepted

    # receive --------------------------------------------------------------------------------------------------------

    def receive(self, event: Any, now: float) -> None:
        match event:
            case PrefillJob() | DecodeJob() as job:
                for attempt in job.attempts():
                    self.kill(attempt)  # a lower attempt whose Cancel was lost
                    self._answering.kill(attempt)
                if isinstance(job, PrefillJob):
                    self._submit(job)
                else:
                    self._answering.submit(job)
            case Kill(key=key):
                self.kill(key)
                self._answering.kill(key)
            case Closed():
                self._closed(event)
            case Unpinned(handoff=handoff):
                self._unpin(handoff)

    def _submit(self, job: PrefillJob) -> None:
        members = self._sequences(job, job.attempts(), hand_off=True)
        if not members:
            return
        group = PrefillGroup(structs.replace(job, prompt=members[0].prompt), members)  # with packed ids
        self._by_sample |= dict.fromkeys(group.living, group)
        self._waiting[group.parent] = group
        self._queues.setdefault(job.decode_epoch, WaitingQueue()).insert(group.parent)
        self._advance(job.decode_epoch)

    def _advance(self, peer: str) -> None:
        """Moves the next groups of a decode worker's queue to the scheduler, while they fit its share of the pool."""
        queue, now = self._queues[peer], self._clock.now()
        while len(queue) and self._fits(self._waiting[parent := queue.first(now)]):
            queue.shares.charge(parent.prompt.tenant, len(parent.tokens))
            queue.remove(parent)
            self._add(self._waiting.pop(parent))
        if not len(queue):
            del self._queues[peer]

    def _fits(self, group: PrefillGroup) -> bool:
        held = self._held.get(group.job.decode_epoch)
        peers = len(self._held.keys() | self._queues.keys())
        pools, need = self._blocks.groups, self._need(group)
        return held is None or all(
            held_blocks + needed <= min(limit, pool.total // peers)
            for held_blocks, needed, limit, pool in zip(held, need, self._max_blocks, pools, strict=True)
        )

    def _need(self, group: PrefillGroup) -> list[int]:
        return self._blocks.needed(len(group.job.prompt.token_ids))

    def _add(self, group: PrefillGroup) -> None:
        group.members = list(group.living.values())  # some samples, even the parent, may have been killed in the queue
        try:
            self._scheduler.add(group.parent, group.members[1:])
        except CapacityError as error:
            self._fail(group, group.living, "capacity", str(error), retryable=False)
        else:
            self._by_parent[group.parent.id] = group
            peer = group.job.decode_epoch
            held = self._held.get(peer, [0] * len(self._kv_groups))
            self._held[peer] = [own + need for own, need in zip(held, self._need(group), strict=True)]

    def _closed(self, closed: Closed) -> None:
        group = self._by_parent.get(closed.handoff)
        if group is None:
            return
        group.opened = False
        if closed.outcome == "accepted":
            self._counts["handoffs"] += 1
            self._counts["bytes"] += closed.bytes
            for sample, sequence in list(group.living.items()):
                self._tell_io(Phase(sequence.key, STATE_HANDED_OFF))
                self._end_sample(group, sample, "accepted")
        else:
            reason = closed.reason
            self._fail(group, group.living, reason, f"handoff: {reason}", retryable=closed.retryable)

    def _unpin(self, handoff: int) -> None:
        for group, blocks in enumerate(self._pinned.pop(handoff)):
            self._blocks.release_io(group, blocks)

    # plan -----------------------------------------------------------------------------------------------------------

    def admitted(self, sequences: list[Sequence], now: float) -> None:
        """Opens handoffs for admitted prompts, which are computed meanwhile."""
        for parent in sequences:
            if (group := self._by_parent.get(parent.id)) is None:
                continue  # answered on this worker
            for each in group.living.values():
                self._tell_io(Phase(each.key, "prefill"))
            if parent.end_length <= len(parent.tokens) + 1:
                continue  # the first token is the last
            self._pinned[parent.id] = [[] for _ in self._kv_groups]
            blocks = tuple([self._pin(group, number) for number in range(len(self._kv_groups))])
            group.opened = True
            samples = tuple(key.sample for key in group.living)
            deadline, due = self._clock.local(group.job.deadline), self._clock.local(parent.due)
            ids = packed(group.job.prompt.token_ids)
            self._tell_io(OpenHandoff(parent.id, group.job, ids, samples, deadline, due, blocks))

    def _pin(self, group: PrefillGroup, number: int) -> list[int]:
        """Pins the blocks of a KV group that will move. Returns the block table; [] while some are not allocated."""
        needed = self._kv_groups[number].needed_blocks(len(group.job.prompt.token_ids))
        table = group.parent.blocks[number]
        if len(table) < needed.stop:
            return []
        pinned = self._pinned[group.parent.id][number] = table[needed.start : needed.stop]
        self._blocks.hold_io(number, pinned)
        return list(table)

    # run ------------------------------------------------------------------------------------------------------------

    def layer_written(self, plan: StepPlan, group: int, layer: int) -> None:
        """Reports the blocks of a layer that may leave, after the running step has written the layer's KV to the pool.

        Full blocks may leave, and with the last chunk of a prompt all of its blocks. Blocks before this step's tokens
        were computed by earlier steps, or found in the prefix cache: they leave with the first chunk.
        """
        for work in plan.works:
            samples = self._by_parent.get(work.sequence)
            if samples is None or not samples.opened:
                continue
            if not self._pinned[work.sequence][group]:
                blocks = self._pin(samples, group)
                if not blocks:
                    continue  # nothing of this window moves yet
                self._tell_io(BlocksTaken(work.sequence, group, blocks))
            end = work.start + len(work.token_ids)
            last = end >= len(samples.job.prompt.token_ids)
            size = self._kv_groups[group].block_tokens
            upto = blocks_for(end, size) if last else end // size
            self._tell_io(LayerReady(work.sequence, group, layer, upto))

    # send -----------------------------------------------------------------------------------------------------------

    def progressed(self, progress: list[SequenceProgress], now: float) -> None:
        """Sends first tokens to the gateways, and commits the samples that continue on their decode worker."""
        self._answering.progressed([item for item in progress if not item.sequence.hand_off], now)
        first = [item for item in progress if item.sequence.hand_off]
        emitted = self._emitted(first, now)
        continuing: dict[PrefillGroup, FirstTokens] = {}
        for item in first:
            key = item.sequence.key
            if (group := self._by_sample.get(key.of)) is not None:  # the sample lives
                tokens = continuing.setdefault(group, FirstTokens([], item.prompt_scores, item.state))
                tokens.branches.append(Branch(key.sample, item.tokens, item.scores))
        for group, tokens in continuing.items():
            self._commit(group, tokens, now)
        if emitted:
            self._tell_io(Emit(emitted))

    def _commit(self, group: PrefillGroup, first: FirstTokens, now: float) -> None:
        stages, at = group.stages(now), self._clock.local(now)
        self._tell_io(CommitHandoff(group.parent.id, first.branches, stages, at, first.prompt_scores, first.state))
        samples = {branch.sample for branch in first.branches}
        for each in group.living.values():
            if each.key.sample in samples:
                self._tell_io(Phase(each.key, STATE_HANDING_OFF))

    def expired(self, sequences: list[Sequence], now: float) -> None:
        """Fails the groups of parents past their deadlines; all samples of a group have the same deadline."""
        self._answering.expired(sequences, now)
        text = "the request's deadline passed on the prefill worker"
        for sequence in sequences:
            if (group := self._by_parent.get(sequence.id)) is not None:
                self._fail(group, group.living, "deadline", text, retryable=False)

    def leave(self, reason: str) -> None:
        """Fails all samples, because the worker stops; another worker can compute them."""
        self._answering.leave(reason)
        super().leave(reason)

    def busy(self) -> bool:
        """Whether any sample is here, or any block that a frame may still be read from."""
        return bool(self._by_sample or self._pinned or self._answering.busy())

    def load(self) -> WorkerLoad:
        """Includes the prompts that wait for a decode worker's share of the pool."""
        load = self._scheduler.load()
        in_lines = [
            PromptWork(len(parent.tokens), 0, owner_of(parent.prompt.tenant, parent.prompt.weight))
            for parent in self._waiting
        ]
        waiting = load.waiting + len(in_lines)
        if in_lines:
            load = structs.replace(load, backlog=load.backlog.and_prompts(in_lines))
        quarantined = self._blocks.quarantined_count
        held = HeldBlocks(pinned=self._blocks.pinned_count - quarantined, quarantined=quarantined)
        return load.with_counts(waiting, self._counts["handoffs"], self._counts["bytes"], held)

    def adapters(self) -> set[str]:
        return super().adapters() | self._answering.adapters()

    # ends -----------------------------------------------------------------------------------------------------------

    def _release(self, sequence: Sequence) -> None:
        if sequence.id and sequence.state is not SequenceState.PARKED:  # a parked parent keeps the prompt's blocks
            self._scheduler.release(sequence)

    def _emptied(self, group: PrefillGroup, reason: str) -> None:
        """Ends a group. The transfer may still hold the prompt's blocks."""
        number, peer = group.parent.id, group.job.decode_epoch
        if group.opened:
            self._tell_io(AbortHandoff(number, reason))
        if number:
            del self._by_parent[number]
            for sequence in group.members:
                self._scheduler.release(sequence)
            self._held[peer] = [own - need for own, need in zip(self._held[peer], self._need(group), strict=True)]
            if not any(self._held[peer]):
                del self._held[peer]
        elif self._waiting.pop(group.parent, None) is not None:
            self._queues[peer].remove(group.parent)
        else:
            return  # the prompt could never fit
        if peer in self._queues:
            self._advance(peer)
