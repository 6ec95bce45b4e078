"""Answers whole requests on a worker.

On a decode worker: all requests. On a prefill worker: requests while no decode worker can be reached.
"""

from contracts.errors import CapacityError
from contracts.messages.job import AnyJob, DecodeJob
from engine.schedule.progress import SequenceProgress
from engine.schedule.sequence import Sequence
from worker.events import Emit
from worker.roles.groups import SequenceGroup, SequenceGroups


class Answering(SequenceGroups[SequenceGroup]):
    """Groups that are answered completely on this worker."""

    def submit(self, job: DecodeJob) -> None:
        """Takes a request. Its prompt is computed once for all samples."""
        keys = job.attempts()
        for key in keys:
            self.kill(key)  # a lower attempt whose Cancel was lost
        late = [key for key in keys if key.of in self._by_sample]
        if late:  # a higher attempt lands here, which the ledger does not know yet
            self._refuse(late, "superseded", f"attempt {job.attempt} comes too late", retryable=False)
            keys = [key for key in keys if key not in late]
        if not keys or not (members := self._sequences(job, keys, hand_off=False)):
            return
        try:
            self._add(SequenceGroup(members, None, job.queued_at))
        except CapacityError as error:
            self._refuse(keys, "capacity", str(error), retryable=False)

    def misdirected(self, job: AnyJob) -> None:
        message = f"a {self._role} worker does not take this kind of job"
        self._refuse(job.attempts(), "misdirected", message, retryable=True)

    def progressed(self, progress: list[SequenceProgress], now: float) -> None:
        if emitted := self._emitted(progress, now):
            self._tell_io(Emit(emitted))

    def expired(self, sequences: list[Sequence], now: float) -> None:
        """Fails sequences past their deadlines.

        Landing sequences are ended by the transfer, since it may still write.
        """
        for sequence in sequences:
            sample = sequence.sample
            group = self._by_sample.get(sample)
            if group is not None and group.landed and group.living[sample] is sequence:
                text = f"the request's deadline passed on the {self._role} worker"
                self._fail(group, [sample], "deadline", text, retryable=False)

    def busy(self) -> bool:
        """Whether any group is here, or any block that KV may still land in."""
        return bool(self._by_parent)

    def _add(self, group: SequenceGroup) -> None:
        """Gives a group to the scheduler. Raises `CapacityError` if it can never fit."""
        self._scheduler.add(group.parent, group.members[1:])
        self._by_parent[group.parent.id] = group
        self._by_sample |= dict.fromkeys(group.living, group)

    def _emptied(self, group: SequenceGroup, reason: str) -> None:
        if group.landed:  # otherwise the transfer reports `Dropped`, since it gets each cancel, too
            self._end(group)

    def _end(self, group: SequenceGroup) -> None:
        """Ends a group, including its living samples."""
        for sample in group.living:
            del self._by_sample[sample]
        for sequence in group.members:
            self._scheduler.release(sequence)
        del self._by_parent[group.parent.id]
