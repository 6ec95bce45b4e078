"""Simulates workers whose steps take the cost model's seconds, and which report as real workers do.

A prefill worker computes prompts in order. A decode worker gives every sequence a token in each step; steps between two
events are alike, so its state moves by many steps at once.
"""

from collections import deque
from heapq import heappop, heappush
from math import inf

from msgspec import structs

from contracts.ids import NO_TICKET
from gateway.workers.worker import Worker
from infra.redis.records import Role, WorkerLoad, WorkerRecord
from pricing.backlog import Backlog
from pricing.steps import StepCosts, pairs_of

BLOCK_TOKENS = 16  # tokens


class Simulated:
    """A worker with the record that the gateway reads."""

    def __init__(self, name: str, role: Role, costs: StepCosts, blocks: int, now: float) -> None:
        self.costs = costs
        self.since = now  # s: it is paid for from then on
        self.draining = False
        load = WorkerLoad(blocks_total=blocks, costs=costs)
        record = WorkerRecord(name, role, "", "", "m", "f", "c", BLOCK_TOKENS, 1 << 20, "cuda", "bf16", now, load=load)
        self.worker = Worker(record)
        self.worker.usable = True

    @property
    def name(self) -> str:
        return self.worker.record.epoch

    def drain(self) -> None:
        self.draining = True
        self.worker.record = structs.replace(self.worker.record, draining=True)

    def report(self, now: float, waiting: int) -> None:
        load = structs.replace(self.worker.record.load, waiting=waiting)
        self.worker.record = structs.replace(self.worker.record, load=load)
        self.worker.reports(self.backlog(now), NO_TICKET, now)

    def backlog(self, now: float) -> Backlog:
        raise NotImplementedError


class Prefill(Simulated):
    """Computes prompts in order of arrival."""

    def __init__(self, name: str, costs: StepCosts, blocks: int, now: float) -> None:
        super().__init__(name, "prefill", costs, blocks, now)
        self.free_at = now
        self._queue: deque[tuple[float, float, int]] = deque()  # when each ends, how long it takes, tokens
        self._tokens = 0  # of the queue

    def take(self, tokens: int, now: float) -> float:
        seconds = self.costs.prompt_seconds(tokens, pairs_of(0, tokens))
        self.free_at = max(self.free_at, now) + seconds
        self._queue.append((self.free_at, seconds, tokens))
        self._tokens += tokens
        return self.free_at

    def is_idle(self, now: float) -> bool:
        return self.free_at <= now

    def backlog(self, now: float) -> Backlog:
        while self._queue and self._queue[0][0] <= now:
            self._tokens -= self._queue.popleft()[2]
        left = self._tokens
        if self._queue:
            end, seconds, tokens = self._queue[0]
            left -= round(tokens * (1 - min(1.0, (end - now) / seconds)))  # which are computed
        blocks = self.worker.record.load.blocks_total
        return Backlog(prompts=len(self._queue), tokens=left, free_blocks=blocks)


class Decode(Simulated):
    """Decodes sequences, as many as its blocks hold."""

    def __init__(self, name: str, costs: StepCosts, blocks: int, now: float) -> None:
        super().__init__(name, "decode", costs, blocks, now)
        self.version = 0  # of its batch; an end predicted for another version is void
        self._tokens = 0.0  # decoded per sequence since the start
        self._context = 0.0  # tokens of all sequences
        self._reserved = 0  # blocks, for whole texts
        self._moved = now
        self._ends: list[tuple[float, int, int]] = []  # at which of these tokens, request, blocks

    def __len__(self) -> int:
        return len(self._ends)

    def has_room(self, tokens: int) -> bool:
        return self._reserved + tokens // BLOCK_TOKENS + 1 <= self.worker.record.load.blocks_total

    def take(self, request: int, prompt: int, answer: int, now: float) -> None:
        self.move(now)
        blocks = (prompt + answer) // BLOCK_TOKENS + 1
        heappush(self._ends, (self._tokens + answer - 1, request, blocks))
        self._context += prompt + 1
        self._reserved += blocks
        self.version += 1

    def next_end(self) -> float:
        if not self._ends:
            return inf
        return self._moved + max(0.0, self._ends[0][0] - self._tokens) * self._step()

    def end(self, now: float, lengths: dict[int, int]) -> int:
        self.move(now)
        _, request, blocks = heappop(self._ends)
        self._context = max(0.0, self._context - lengths[request]) if self._ends else 0.0
        self._reserved -= blocks
        self.version += 1
        return request

    def move(self, now: float) -> None:
        if self._ends:
            tokens = (now - self._moved) / self._step()
            self._tokens += tokens
            self._context += tokens * len(self._ends)
        self._moved = now

    def backlog(self, now: float) -> Backlog:
        self.move(now)
        free = self.worker.record.load.blocks_total - self._reserved
        return Backlog(sequences=len(self._ends), context=round(self._context), free_blocks=free)

    def _step(self) -> float:
        return self.costs.decode_seconds(len(self._ends), round(self._context))
