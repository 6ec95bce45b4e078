"""Lists the workers that this gateway is connected to; `gateway.workers.discovery` finds and drops them."""

from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

from contracts.adapters import HeldAdapter
from contracts.pooling import Pooling
from gateway.workers.worker import Worker

Known = TypeVar("Known", bound=Worker)
"""How the workers are reached: over a `WorkerConnection`, or in a simulation."""


class WorkerDirectory(Generic[Known]):
    """The live workers, by their epochs."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def __iter__(self) -> Iterator[Known]:
        return iter(list(self._known.values()))

    def get(self, epoch: str) -> Known | None:
        """Returns this life of a worker, or None if it is unknown or dead."""
        return self._known.get(epoch)

    def add(self, worker: Known) -> None:
        self._known[worker.epoch] = worker

    def remove(self, worker: Known) -> None:
        del self._known[worker.epoch]

    def ready(self) -> bool:
        return bool(self._answering())

    def adapters(self) -> dict[str, HeldAdapter]:
        """Returns the adapters that new requests may name, by name.

        Where workers have different weights under one name, the weights that most workers have count.
        """
        held = [
            held for worker in self._answering() for held in worker.record.adapters if held.digest and not held.leaving
        ]
        often = Counter((one.name, one.digest) for one in held)
        best = sorted(held, key=lambda one: (often[one.name, one.digest], one.digest))
        return {one.name: one for one in best}

    def pooling(self) -> Pooling | None:
        """Returns how the model makes vectors or scores; None if it answers chats, or while there are no workers."""
        return next((worker.record.pooling for worker in self if worker.record.pooling is not None), None)

    def block_sizes(self) -> set[int]:
        """Returns the block sizes, in tokens, of workers that report which blocks they have."""
        return {worker.record.block_tokens for worker in self if worker.kept.told}

    def context(self) -> int:
        """Returns the shortest limit on prompt + answer among the workers, in tokens, or 0 if none has one."""
        limits = [worker.record.max_model_len for worker in self if worker.record.max_model_len]
        return min(limits, default=0)

    def _answering(self) -> list[Known]:
        usable = [worker for worker in self if worker.usable and not worker.record.draining]
        return [worker for worker in usable if worker.record.role == "decode"] or usable
