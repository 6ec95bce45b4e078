"""Which workers a request goes to: the least loaded pair whose KV means the same. Pure."""

from collections.abc import Collection, Iterable, Sequence

from core.kvspec import blocks_for
from core.records import WorkerRecord
from gateway.requests.sample import Route


class Candidate:
    """A worker as the router sees it: its own record, and what this gateway has given it since."""

    __slots__ = ("_others", "ours", "record", "usable")

    def __init__(self, record: WorkerRecord) -> None:
        self.record = record
        self.ours = 0  # sequences of this gateway in progress there
        self._others = record.load.running + record.load.waiting
        self.usable = False

    def renew(self, record: WorkerRecord) -> None:
        """A newer record. What it counts beyond this gateway's own sequences belongs to others."""
        if record.load != self.record.load:
            self._others = max(0, record.load.running + record.load.waiting - self.ours)
        self.record = record

    def load(self) -> int:
        """Sequences there, ours counted exactly and others' as last reported."""
        return self.ours + self._others

    def full(self, tokens: int) -> bool:
        """Whether so many tokens would have to wait for blocks."""
        load = self.record.load
        return blocks_for(tokens, self.record.block_tokens) > load.blocks_total - load.blocks_used

    def kv_use(self) -> float:
        """Share of its blocks that are in use."""
        load = self.record.load
        return load.blocks_used / load.blocks_total if load.blocks_total else 0.0


class Router:
    """Picks routes. Among equals it goes round."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, workers: Iterable[Candidate], tokens: int, avoid: Collection[str] = ()) -> Route | None:
        """A route for a prompt of `tokens` tokens, or None. `avoid` holds epochs that are taken only if need be.

        KV passes only between workers whose KV means the same. Where no prefill worker fits, a decode worker takes
        the whole request; without a decode worker there is no route.
        """
        usable = [worker for worker in workers if worker.usable and not worker.record.draining]
        prefills = [worker for worker in usable if worker.record.role == "prefill"]
        decodes = [worker for worker in usable if worker.record.role == "decode"]
        fitting = {worker.record.content for worker in prefills} & {worker.record.content for worker in decodes}
        if fitting:
            decodes = [worker for worker in decodes if worker.record.content in fitting]
        if not decodes:
            return None
        self._turn += 1
        decode = self._least(decodes, tokens, avoid)
        prefills = [worker for worker in prefills if worker.record.content == decode.record.content]
        prefill = self._least(prefills, tokens, avoid) if prefills else None
        return Route(prefill.record.epoch if prefill else "", decode.record.epoch)

    def _least(self, workers: Sequence[Candidate], tokens: int, avoid: Collection[str]) -> Candidate:
        ordered = sorted(workers, key=lambda worker: worker.record.epoch)
        shift = self._turn % len(ordered)
        return min(
            ordered[shift:] + ordered[:shift],
            key=lambda worker: (
                worker.record.epoch in avoid,
                worker.full(tokens),
                worker.load(),
                round(worker.kv_use(), 1),
            ),
        )
