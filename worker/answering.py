"""Answers requests on a worker: keeps the sequences that run here, from a job or a landing to their ends.

Both services use it: a decode worker for all of its sequences, a prefill worker for the whole requests that it is given
while no decode worker can be reached.
"""

from collections.abc import Callable, Iterable

from contracts.errors import CapacityError, MessageError
from contracts.ids import AttemptKey, SampleKey
from contracts.messages.gateway import REASON_NO_ADAPTER, Emitted, Stages
from contracts.messages.job import AnyJob, DecodeJob
from engine.schedule.progress import Progress, may_do_better, reason_of
from engine.schedule.sequence import Sequence
from infra.redis.records import Role
from kvtransfer.handoff import HandoffKey
from worker.events import AttemptFailure, Emit, Fail
from worker.role import WorkerParts, check_tokens


class SequenceGroup:
    """Keeps the samples of one prompt on this worker, and the handoff that brings its KV, if a handoff does."""

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


class Answering:
    """Holds the groups of one worker, and plays the part of `worker.engine_loop.RolePolicy` that concerns them."""

    def __init__(
        self, parts: WorkerParts, role: Role, over: Callable[[SequenceGroup], None] = lambda group: None
    ) -> None:
        """`over` is called with each group that ends here."""
        self._scheduler = parts.scheduler
        self._vocab_size = parts.vocab_size
        self._adapters = parts.life.adapters
        self._tell_io = parts.life.outbox.post
        self._role = role
        self._over = over
        self.by_key: dict[SampleKey, SequenceGroup] = {}  # groups by each of their living samples
        self.by_stem: dict[int, SequenceGroup] = {}  # groups by their stem's id

    # what comes -----------------------------------------------------------------------------------------------------

    def submit(self, job: DecodeJob) -> None:
        """Takes a whole request: its prompt is computed here, once for all samples, and each is answered."""
        keys = job.attempts()
        for key in keys:
            self.kill(key)  # a lower attempt whose Cancel was lost
        late = [key for key in keys if key.of in self.by_key]
        if late:  # a higher attempt lands here, which the ledger does not know yet
            self._refuse(late, "superseded", f"attempt {job.attempt} comes too late", retryable=False)
            keys = [key for key in keys if key not in late]
        if not keys:
            return
        if not self._adapters.has(job.prompt.adapter):
            self._refuse(keys, REASON_NO_ADAPTER, "this worker lacks the request's adapter", retryable=True)
            return
        try:
            check_tokens(job.prompt.token_ids, self._vocab_size)
            members = [Sequence.of_job(job, key, hand_off=False) for key in keys]
            self.add(SequenceGroup(members, None, job.queued_at))
        except MessageError as error:
            self._refuse(keys, "malformed", str(error), retryable=False)
        except CapacityError as error:
            self._refuse(keys, "capacity", str(error), retryable=False)

    def misdirected(self, job: AnyJob) -> None:
        """Refuses a job that workers of this role do not take."""
        message = f"a {self._role} worker does not take this kind of job"
        self._refuse(job.attempts(), "misdirected", message, retryable=True)

    def _refuse(self, keys: Iterable[AttemptKey], reason: str, message: str, *, retryable: bool) -> None:
        for key in keys:
            self._tell_io(Fail(key, AttemptFailure(reason, message, retryable)))

    def add(self, group: SequenceGroup) -> None:
        """Gives a group to the scheduler. Raises `CapacityError` where it could never fit."""
        self._scheduler.add(group.stem, group.members[1:])
        self.by_stem[group.stem.id] = group
        self.by_key |= dict.fromkeys(group.living, group)

    def kill(self, key: AttemptKey) -> None:
        """Ends this attempt at a sample, and lower attempts; the gateway is told nothing."""
        group = self.by_key.get(key.of)
        if group is not None and group.stem.key.attempt <= key.attempt:
            self.leave(group, key.of)

    # what steps give ------------------------------------------------------------------------------------------------

    def progressed(self, progress: list[Progress], now: float) -> None:
        """Sends the tokens of a step to the gateways, and lets go what has ended."""
        emitted = []
        for item in progress:
            sequence = item.sequence
            group = self.by_key[sequence.key.of]
            if item.failed:
                reason = reason_of(item.failed)
                self.fail(group, [sequence.key.of], reason, item.failed, retryable=may_do_better(item.failed))
                continue
            stages = None
            if group.handoff is None and sequence.first_token_at == now:
                begun = group.stem.admitted_at
                cached = min(group.stem.cached_tokens, sequence.prompt_tokens)
                stages = Stages((begun - group.queued_at) * 1000, (now - begun) * 1000, cached_tokens=cached)
            scores, prompt_scores = item.scores, item.prompt_scores
            emitted.append(Emitted(sequence.key, item.index, item.tokens, item.finish, stages, scores, prompt_scores))
            if item.finish is not None:
                self.leave(group, sequence.key.of)
        if emitted:
            self._tell_io(Emit(emitted))

    def expired(self, sequences: list[Sequence]) -> None:
        """Fails these sequences, whose deadline passed. What lands is left to the transfer, which may write to it."""
        for sequence in sequences:
            sample = sequence.key.of
            group = self.by_key.get(sample)
            if group is not None and group.landed and group.living[sample] is sequence:
                text = f"the request's deadline passed on the {self._role} worker"
                self.fail(group, [sample], "deadline", text, retryable=False)

    def stop(self, reason: str) -> None:
        """Fails all that runs here, because the worker stops; another worker can go on. What still lands stays."""
        for group in list(self.by_stem.values()):
            if group.landed:
                message = f"the {self._role} worker is leaving"
                self.fail(group, group.living, reason, message, retryable=True)

    def adapters(self) -> set[str]:
        """Returns the digests of the adapters that something here uses."""
        return {group.stem.prompt.adapter for group in self.by_stem.values()}

    # ends -----------------------------------------------------------------------------------------------------------

    def fail(
        self, group: SequenceGroup, samples: Iterable[SampleKey], reason: str, message: str, *, retryable: bool
    ) -> None:
        """Reports samples of a group as failed, and lets them go."""
        for sample in list(samples):
            self._tell_io(Fail(group.living[sample].key, AttemptFailure(reason, message, retryable)))
            self.leave(group, sample)

    def leave(self, group: SequenceGroup, sample: SampleKey) -> None:
        """Lets a sample go that is over. The last one ends its group, unless bytes may still land in its blocks.

        The transfer is told of every cancel too: it drops a handoff when all its samples are dead.
        """
        sequence = group.living.pop(sample)
        del self.by_key[sample]
        if group.living:
            self._scheduler.release(sequence)
        elif group.landed:
            self.end(group)

    def end(self, group: SequenceGroup) -> None:
        """Ends a group, whichever of its samples still live."""
        for sample in group.living:
            del self.by_key[sample]
        for sequence in group.members:
            self._scheduler.release(sequence)
        del self.by_stem[group.stem.id]
        self._over(group)
