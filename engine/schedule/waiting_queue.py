"""The queue of sequences that wait for blocks: tenants take turns, and a tenant's sequences are in order of urgency.

Preempted sequences come before all others, in order of arrival. Then tenants take turns by their shares
(`infra/fair_queueing/shares.py`). Within a tenant the order is

    urgency = time at which the first token is due + SECONDS_PER_PRIORITY x priority

This is an absolute time, so a waiting sequence becomes more urgent relative to later ones, and none waits for ever.
Without an objective a first token is due half a minute after its job was queued. A late sequence has missed its
objective already; it comes after the sequences due within `LATE_PENALTY_S`, so that it makes none of them late.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from operator import attrgetter, itemgetter
from typing import NamedTuple

from engine.schedule.sequence import Sequence
from infra.fair_queueing.shares import Shares
from pricing.routes.backlog import LENGTH_CLASSES, Owner, length_class, owner_of
from pricing.step_costs.steps import pairs_of

LATE_PENALTY_S = 30.0
SECONDS_PER_PRIORITY = 1.0  # for each unit of priority …
MAX_PRIORITY_SECONDS = 60.0  # … and at most

by_arrival = attrgetter("id")


class ArrivalOrder:
    """Sequences in the order of their arrival at the engine."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def first(self) -> Sequence:
        return self._sequences[0]

    def insert(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=by_arrival)

    def remove(self, sequence: Sequence) -> None:
        place = bisect_left(self._sequences, sequence.id, key=by_arrival)
        assert self._sequences[place] is sequence
        del self._sequences[place]


def urgency(sequence: Sequence, now: float) -> float:
    """Returns a time in s, lower for more urgent sequences; `now` is on the clock of the sequence's deadline."""
    due = sequence.due + LATE_PENALTY_S * (sequence.due < now)
    return due + max(-MAX_PRIORITY_SECONDS, min(MAX_PRIORITY_SECONDS, SECONDS_PER_PRIORITY * sequence.prompt.priority))


class QueuePosition(NamedTuple):
    """Rank of a sequence in its tenant's queue, lowest first."""

    urgency: float  # s
    arrival: int  # the sequence's id, or a count of arrivals if it has no id yet


class TenantQueue:
    """The waiting sequences of one tenant."""

    def __init__(self) -> None:
        self.weight = 1.0  # of its newest sequence
        self.tokens = 0  # number to be computed for its sequences
        self._arrivals = count(1)
        self._places: dict[Sequence, QueuePosition] = {}
        self._waiting: list[tuple[QueuePosition, Sequence]] = []  # in order
        self._by_length: list[tuple[int, int, Sequence]] = []  # a heap; may contain sequences that have left the queue
        self._by_due: list[tuple[float, int, Sequence]] = []  # a heap of sequences not late yet; likewise

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, sequence in self._waiting)

    def insert(self, sequence: Sequence) -> None:
        """Inserts a sequence as if it were not late; `first` moves late sequences."""
        arrival = sequence.id or next(self._arrivals)
        self.tokens += sequence.to_compute
        self._put(sequence, QueuePosition(urgency(sequence, -inf), arrival))
        heappush(self._by_due, (sequence.due, arrival, sequence))
        heappush(self._by_length, (sequence.to_compute, arrival, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence; its `to_compute` must be the same as at `insert`."""
        self._take(sequence)
        self.tokens -= sequence.to_compute
        if len(self._by_length) + len(self._by_due) > 4 * len(self._waiting) + 32:
            self._by_length = [each for each in self._by_length if each[2] in self._places]
            self._by_due = [each for each in self._by_due if each[2] in self._places]
            heapify(self._by_length)
            heapify(self._by_due)

    def first(self, now: float) -> Sequence:
        """Returns the most urgent sequence. The queue must not be empty."""
        while self._by_due and self._by_due[0][0] < now:
            _, _, late = heappop(self._by_due)
            if late in self._places:
                self._put(late, QueuePosition(urgency(late, now), self._take(late).arrival))
        return self._waiting[0][1]

    def shortest(self) -> Sequence:
        """Returns the sequence with the fewest tokens to compute. The queue must not be empty."""
        while self._by_length[0][2] not in self._places:
            heappop(self._by_length)
        return self._by_length[0][2]

    def _put(self, sequence: Sequence, place: QueuePosition) -> None:
        self._places[sequence] = place
        insort(self._waiting, (place, sequence))

    def _take(self, sequence: Sequence) -> QueuePosition:
        place = self._places.pop(sequence)
        at = bisect_left(self._waiting, place, key=itemgetter(0))
        assert self._waiting[at][1] is sequence
        del self._waiting[at]
        return place


class WaitingQueue:
    """All sequences that wait for blocks. `now` is on the clock of their deadlines."""

    def __init__(self) -> None:
        self.shares = Shares()
        self.tokens = 0  # to be computed for the waiting sequences, as known when they were queued
        self.pairs = 0.0  # of such a token and a token that it attends to
        self.owned: Counter[Owner] = Counter()  # these tokens by owner, without preempted sequences
        self.lengths = [0] * LENGTH_CLASSES  # these tokens by the length of their prompts
        self._size = 0  # sequences
        self._preempted = ArrivalOrder()
        self._tenants: dict[str, TenantQueue] = {}

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._preempted
        for tenant in self._tenants.values():
            yield from tenant

    def insert(self, sequence: Sequence) -> None:
        """Queues a sequence of which `to_compute` tokens will be computed."""
        self._count(sequence, 1)
        if sequence.preemptions:
            self._preempted.insert(sequence)
            return
        prompt = sequence.prompt
        tenant = self._tenants.setdefault(prompt.tenant, TenantQueue())
        tenant.weight = prompt.weight
        tenant.insert(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence; its `to_compute` must be the same as at `insert`."""
        self._count(sequence, -1)
        if sequence.preemptions:
            self._preempted.remove(sequence)
            return
        name = sequence.prompt.tenant
        self._tenants[name].remove(sequence)
        if not len(self._tenants[name]):
            del self._tenants[name]

    @property
    def preempted(self) -> Sequence | None:
        return self._preempted.first if len(self._preempted) else None

    def weights(self) -> dict[str, float]:
        return {name: tenant.weight for name, tenant in self._tenants.items()}

    def head(self, tenant: str, now: float) -> Sequence | None:
        return self._tenants[tenant].first(now) if tenant in self._tenants else None

    def tokens_of(self, tenant: str) -> int:
        return self._tenants[tenant].tokens if tenant in self._tenants else 0

    def shortest(self, tenant: str) -> Sequence | None:
        return self._tenants[tenant].shortest() if tenant in self._tenants else None

    def first(self, now: float) -> Sequence:
        if len(self._preempted):
            return self._preempted.first
        return self._tenants[self.shares.turn(self.weights())].first(now)

    def _count(self, sequence: Sequence, sign: int) -> None:
        tokens = sequence.to_compute
        self._size += sign
        self.tokens += sign * tokens
        self.pairs += sign * pairs_of(len(sequence.tokens) - tokens, tokens)
        self.lengths[length_class(tokens)] += sign * tokens
        if not sequence.preemptions:
            owner = owner_of(sequence.prompt.tenant, sequence.prompt.weight)
            self.owned[owner] += sign * tokens
            if not self.owned[owner]:
                del self.owned[owner]
