"""Sequence groups of a worker, the samples of one prompt, from arrival to end. Both roles build on them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from msgspec import structs

from contracts.errors import MessageError
from contracts.ids import AttemptKey, SampleKey
from contracts.messages.gateway import REASON_NO_ADAPTER, Emitted, Stages
from contracts.messages.job import Job
from engine.schedule.progress import SequenceProgress, may_do_better, reason_of
from engine.schedule.sequence import Sequence
from infra.redis.records import Role
from kvtransfer.handoff import HandoffKey
from worker.events import AttemptFailure, Fail
from worker.policy_parts import PolicyParts, check_tokens


class SequenceGroup:
    """The samples of one prompt on this worker. `handoff` brings the prompt's KV; None: it is computed here."""

    __slots__ = ("handoff", "landed", "living", "members", "queued_at")

    def __init__(self, members: list[Sequence], handoff: HandoffKey | None, queued_at: float) -> None:
        self.members = members  # the first is the parent, from which the others branch off
        self.living = {each.sample: each for each in members}  # samples whose end was not reported yet
        self.handoff = handoff
        self.landed = handoff is None  # no more KV will be written to its blocks
        self.queued_at = queued_at  # server time, s

    @property
    def parent(self) -> Sequence:
        """The sequence that holds the prompt's blocks until all samples have begun. Its id is 0 before it is added."""
        return self.members[0]

    def stages(self, now: float) -> Stages:
        """Returns the times up to the first token, which came at `now` (server time, s)."""
        begun = self.parent.admitted_at
        cached = min(self.parent.cached_tokens, self.parent.prompt_tokens)
        return Stages((begun - self.queued_at) * 1000, (now - begun) * 1000, cached_tokens=cached)


Group = TypeVar("Group", bound=SequenceGroup)


class SequenceGroups(ABC, Generic[Group]):
    """Finds groups by sample, and reports the failures and ends of samples. Roles define the end of a group."""

    def __init__(self, parts: PolicyParts, role: Role) -> None:
        self._scheduler = parts.scheduler
        self._vocab_size = parts.vocab_size
        self._adapters = parts.adapters
        self._tell_io = parts.tell_io
        self._role = role
        self._by_sample: dict[SampleKey, Group] = {}  # groups by each of their living samples
        self._by_parent: dict[int, Group] = {}  # groups in the scheduler, by the id of their parent

    def kill(self, key: AttemptKey) -> None:
        """Ends this attempt at a sample, and lower attempts, without telling the gateway."""
        group = self._by_sample.get(key.of)
        if group is not None and group.parent.key.attempt <= key.attempt:
            self._end_sample(group, key.of, "cancelled")

    def leave(self, reason: str) -> None:
        """Fails all samples, because the worker stops; another worker can run them. Handoffs that land stay."""
        for group in dict.fromkeys(self._by_sample.values()):
            if group.landed:
                self._fail(group, group.living, reason, f"the {self._role} worker is leaving", retryable=True)

    def adapters(self) -> set[str]:
        return {group.parent.prompt.adapter for group in (*self._by_parent.values(), *self._by_sample.values())}

    def _sequences(self, job: Job, keys: list[AttemptKey], *, hand_off: bool) -> list[Sequence]:
        """Makes a sequence for each attempt. Refuses all of them, and returns [], if the prompt cannot run here."""
        if not self._adapters.has(job.prompt.adapter):
            self._refuse(keys, REASON_NO_ADAPTER, "this worker lacks the request's adapter", retryable=True)
            return []
        try:
            job = structs.replace(job, prompt=job.prompt.packed())
            check_tokens(job.prompt.token_ids, self._vocab_size)
            return [Sequence.of_job(job, key, hand_off=hand_off) for key in keys]
        except MessageError as error:
            self._refuse(keys, "malformed", str(error), retryable=False)
            return []

    def _emitted(self, progress: list[SequenceProgress], now: float) -> list[Emitted]:
        emitted = []
        for item in progress:
            sequence = item.sequence
            sample = sequence.sample
            group = self._by_sample[sample]
            if item.failed:
                reason = reason_of(item.failed)
                self._fail(group, [sample], reason, item.failed, retryable=may_do_better(item.failed))
                continue
            computed = group.handoff is None and sequence.first_token_at == now
            stages = group.stages(now) if computed else None
            scores, prompt_scores, finish = item.scores, item.prompt_scores, item.finish
            vector = b"" if sequence.hand_off else item.state
            tokens = Emitted(sequence.key, item.index, item.tokens, finish, stages, scores, prompt_scores, vector)
            emitted.append(tokens)
            if finish is not None:
                self._end_sample(group, sample, "done")
        return emitted

    def _refuse(self, keys: Iterable[AttemptKey], reason: str, message: str, *, retryable: bool) -> None:
        for key in keys:
            self._tell_io(Fail(key, AttemptFailure(reason, message, retryable)))

    def _fail(self, group: Group, samples: Iterable[SampleKey], reason: str, message: str, *, retryable: bool) -> None:
        for sample in list(samples):
            self._refuse([group.living[sample].key], reason, message, retryable=retryable)
            self._end_sample(group, sample, reason)

    def _end_sample(self, group: Group, sample: SampleKey, reason: str) -> None:
        """Ends a sample without a report: it was reported, or another worker reports it."""
        sequence = group.living.pop(sample)
        del self._by_sample[sample]
        if group.living:
            self._release(sequence)
        else:
            self._emptied(group, reason)

    def _release(self, sequence: Sequence) -> None:
        self._scheduler.release(sequence)

    @abstractmethod
    def _emptied(self, group: Group, reason: str) -> None:
        """Called after the last sample of a group has ended for `reason`."""
