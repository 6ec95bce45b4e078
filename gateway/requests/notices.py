"""Sends workers notices about attempts: missing tokens, cancelled attempts, finished attempts."""

from collections.abc import Iterable, Iterator
from typing import Generic

from contracts.ids import AttemptKey
from contracts.messages.gateway import Question
from gateway.requests.attempt import Attempt
from gateway.requests.cancels import Cancels, Target
from gateway.requests.sample import Sample
from gateway.workers.directory import Known, WorkerDirectory
from gateway.workers.worker import Worker

CANCEL_AFTER_DEADLINE_S = 30.0  # a cancellation is repeated until this long after the deadline; then workers forget


class WorkerNotices(Generic[Known]):
    """Sends notices to connected workers, and repeats cancellations until they are acknowledged."""

    def __init__(self, workers: WorkerDirectory[Known]) -> None:
        self._workers = workers
        self._cancels = Cancels()

    def ask(self, samples: Iterable[Sample]) -> None:
        """Asks both workers of each sample's attempt for its next tokens, in one message per worker."""
        questions: dict[str, list[Question]] = {}
        for sample in samples:
            assert sample.attempt is not None
            for epoch in sample.attempt.route.workers():
                questions.setdefault(epoch, []).append(Question(sample.attempt_key, len(sample.tokens)))
        for epoch, asked in questions.items():
            if worker := self._workers.get(epoch):
                worker.ask(asked)

    def over(self, sample: Sample) -> None:
        for worker in self._of(sample.attempt):
            worker.ended(sample.attempt_key)

    def cancel(self, sample: Sample, attempt: Attempt, now: float) -> None:
        until = max(sample.deadline, now) + CANCEL_AFTER_DEADLINE_S
        key = AttemptKey(sample.key.request, sample.key.sample, attempt.number)
        for worker in self._of(attempt):
            worker.cancel(self._cancels.add(worker.epoch, key, now, until))

    def repeat_cancels(self, now: float) -> None:
        for epoch, key in self._cancels.due(now):
            if worker := self._workers.get(epoch):
                worker.cancel(key)

    def acknowledged(self, worker: Worker, key: AttemptKey) -> bool:
        """Records a worker's answer for an attempt; returns whether the attempt was cancelled there."""
        return self._cancels.acknowledged(worker.epoch, key)

    def stale(self, worker: Worker, key: AttemptKey, ended: bool) -> None:
        """Ends an unwanted sequence on a worker, unless it is being cancelled already."""
        if ended:
            worker.ended(key)
        elif Target(worker.epoch, key.of) not in self._cancels:
            worker.cancel(key)

    def worker_gone(self, epoch: str) -> None:
        self._cancels.worker_gone(epoch)

    def _of(self, attempt: Attempt | None) -> Iterator[Known]:
        for epoch in attempt.route.workers() if attempt is not None else ():
            if worker := self._workers.get(epoch):
                yield worker
