"""Chooses the workers of an attempt: the least loaded pair whose KV means the same. Pure."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from core.kv.spec import blocks_for
from core.redis.records import WorkerRecord


class Route(NamedTuple):
    """Names the workers of an attempt by their epochs; `prefill` is empty on the short path."""

    prefill: str
    decode: str

    def workers(self) -> tuple[str, ...]:
        """Returns both epochs, or the only one."""
        return (self.prefill, self.decode) if self.prefill else (self.decode,)

    def first(self) -> str:
        """Returns the epoch of the worker whose stream the job goes to."""
        return self.prefill or self.decode


class Worker:
    """Holds what this gateway knows of one worker: its latest record, and the sequences that it was given since."""

    def __init__(self, record: WorkerRecord) -> None:
        self.record = record
        self.ours = 0  # sequences of this gateway in progress there
        self.usable = False  # whether requests may go there
        self.late = False  # it, or its engine, should have answered by now: requests go there if nobody else is there
        self._others = record.load.running + record.load.waiting  # sequences of other gateways

    def renew(self, record: WorkerRecord) -> None:
        """Takes a newer record. What it counts beyond this gateway's own sequences belongs to other gateways."""
        if record.load != self.record.load:
            self._others = max(0, record.load.running + record.load.waiting - self.ours)
        self.record = record

    def load(self) -> int:
        """Returns the number of sequences there: ours counted exactly, and others' as last reported."""
        return self.ours + self._others

    def has(self, adapter: str) -> bool:
        """Returns whether requests with this adapter's digest may go there; the empty one is the model alone."""
        return not adapter or any(held.digest == adapter for held in self.record.adapters)

    def full(self, tokens: int) -> bool:
        """Returns whether a sequence of so many tokens would have to wait for KV blocks."""
        load = self.record.load
        return blocks_for(tokens, self.record.block_tokens) > load.blocks_total - load.blocks_used

    def kv_use(self) -> float:
        """Returns the share of its KV blocks that are in use, 0 to 1."""
        load = self.record.load
        return load.blocks_used / load.blocks_total if load.blocks_total else 0.0


class Router:
    """Picks routes. Equally loaded workers take turns."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(
        self, workers: Iterable[Worker], tokens: int, avoid: Collection[str] = (), adapter: str = ""
    ) -> Route | None:
        """Returns a route for a prompt of `tokens` tokens over workers that have its `adapter`, or None without one.

        `avoid` holds epochs that are taken only if nobody else is there, as are those that are late. KV passes only
        between workers whose KV means the same. Where no prefill worker fits, a decode worker takes the whole request;
        without a decode worker there is no route.
        """
        usable = [worker for worker in workers if worker.usable and not worker.record.draining and worker.has(adapter)]
        prefills = [worker for worker in usable if worker.record.role == "prefill"]
        decodes = [worker for worker in usable if worker.record.role == "decode"]
        fitting = {worker.record.content for worker in prefills} & {worker.record.content for worker in decodes}
        if fitting:
            decodes = [worker for worker in decodes if worker.record.content in fitting]
        if not decodes:
            return None
        self._turn += 1
        decode = self._least_loaded(decodes, tokens, avoid)
        prefills = [worker for worker in prefills if worker.record.content == decode.record.content]
        prefill = self._least_loaded(prefills, tokens, avoid).record.epoch if prefills else ""
        return Route(prefill, decode.record.epoch)

    def _least_loaded(self, workers: Sequence[Worker], tokens: int, avoid: Collection[str]) -> Worker:
        def cost(worker: Worker) -> tuple[bool, bool, bool, int, float]:
            avoided = worker.record.epoch in avoid
            return worker.late, avoided, worker.full(tokens), worker.load(), round(worker.kv_use(), 1)

        ordered = sorted(workers, key=lambda worker: worker.record.epoch)
        shift = self._turn % len(ordered)
        return min(ordered[shift:] + ordered[:shift], key=cost)
