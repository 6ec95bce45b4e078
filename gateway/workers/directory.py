"""Lists the workers that this gateway is connected to; `gateway.workers.discovery` finds and drops them."""

from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

from contracts.adapters import HeldAdapter
from contracts.pooling import Pooling
from gateway.workers.holders import BlockHolders
from gateway.workers.kept_blocks import KeptBlocks
from gateway.workers.roster import Roster
from gateway.workers.worker import Worker

ALL_LEFT = object()
Known = TypeVar("Known", bound=Worker)
"""The class of the workers: `WorkerConnection`, or a simulated worker."""


class WorkerDirectory(Generic[Known]):
    """The live workers, by their epochs."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._holders: BlockHolders[KeptBlocks] = BlockHolders()
        self._leaving: list[Iterator[None]] = []  # removes the blocks of workers that have left, step by step
        self._roster: Roster | None = None  # of workers that serve; None: out of date
        self._changed: set[Worker] = set()  # since the roster was brought up to date
        self._block_sizes: set[int] = set()
        self._sized = -1  # workers that told their blocks when `_block_sizes` was made; -1: out of date

    def __iter__(self) -> Iterator[Known]:
        return iter(list(self._known.values()))

    def get(self, epoch: str) -> Known | None:
        """Returns this life of a worker, or None if it is unknown or dead."""
        return self._known.get(epoch)

    def add(self, worker: Known) -> None:
        self._known[worker.epoch] = worker
        worker.joins(self._holders, self._changed.add)
        self._roster, self._sized = None, -1

    def remove(self, worker: Known) -> None:
        del self._known[worker.epoch]
        self._leaving.append(worker.leaves())
        self._changed.discard(worker)
        self._roster, self._sized = None, -1

    def serving(self, adapter: str) -> Roster:
        """Returns the workers that take new requests with this adapter's digest; without one, from a kept roster."""
        if self._leaving and next(self._leaving[-1], ALL_LEFT) is ALL_LEFT:
            self._leaving.pop()
        if adapter:
            return Roster([each for each in self._known.values() if each.serves(adapter)], self._holders)
        if self._roster is None or any(self._comes_or_goes(self._roster, each) for each in self._changed):
            self._roster = Roster([each for each in self._known.values() if each.serves("")], self._holders)
        else:
            self._roster.weigh(self._changed)
        self._changed.clear()
        return self._roster

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
        if self._sized != len(self._holders.telling):
            self._block_sizes = {worker.record.block_tokens for worker in self if worker.kept.told}
            self._sized = len(self._holders.telling)
        return self._block_sizes

    def context(self) -> int:
        """Returns the shortest limit on prompt + answer among the workers, in tokens, or 0 if none has one."""
        limits = [worker.record.max_model_len for worker in self if worker.record.max_model_len]
        return min(limits, default=0)

    def _comes_or_goes(self, roster: Roster, worker: Worker) -> bool:
        serves = self._known.get(worker.epoch) is worker and worker.serves("")
        return serves != roster.has(worker)

    def _answering(self) -> list[Known]:
        usable = [worker for worker in self if worker.usable and not worker.record.draining]
        return [worker for worker in usable if worker.record.role == "decode"] or usable
