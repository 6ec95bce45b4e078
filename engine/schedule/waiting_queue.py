"""Orders those who wait for blocks: tenants take turns by their shares, and each tenant's are in order of urgency.

Who was preempted comes before everybody else, in order of arrival. Then tenants take turns
(`infra/fair_queueing/shares.py`). Within a tenant the order is

    urgency = when the first token is due + seconds for each unit of priority

an absolute time, so that whoever waits grows more urgent beside those who come later, and nobody waits for ever.
Without an objective a first token is due half a minute after its job was queued. One that is late already has lost its
objective; it goes behind those that are due within `LATE_PENALTY_S`, and so costs nobody theirs.
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
from pricing.backlog import LENGTH_CLASSES, Owner, length_class, owner_of
from pricing.steps import pairs_of

LATE_PENALTY_S = 30.0  # s
SECONDS_PER_PRIORITY = 1.0  # s for each unit of priority …
MAX_PRIORITY_SECONDS = 60.0  # … and for all of them at most

by_arrival = attrgetter("id")


class ArrivalOrder:
    """Keeps sequences in the order in which their engine got them."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def first(self) -> Sequence:
        """Returns the earliest; there must be one."""
        return self._sequences[0]

    def insert(self, sequence: Sequence) -> None:
        """Puts a sequence at its place."""
        insort(self._sequences, sequence, key=by_arrival)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out; it must be in."""
        place = bisect_left(self._sequences, sequence.id, key=by_arrival)
        assert self._sequences[place] is sequence
        del self._sequences[place]


def urgency(sequence: Sequence, now: float) -> float:
    """Returns a time in s, lower for the more urgent; `now` is on the clock of the sequence's deadline."""
    due = sequence.due + LATE_PENALTY_S * (sequence.due < now)
    return due + max(-MAX_PRIORITY_SECONDS, min(MAX_PRIORITY_SECONDS, SECONDS_PER_PRIORITY * sequence.prompt.priority))


class QueuePosition(NamedTuple):
    """Says where one stands among those of its tenant: the lower, the earlier."""

    urgency: float  # s
    arrival: int  # the engine's number, or that of its coming where it has none yet


class TenantQueue:
    """Keeps those of one tenant who wait."""

    def __init__(self) -> None:
        self.weight = 1.0  # as the last one that came had it
        self.tokens = 0  # that will be computed for them
        self._coming = count(1)
        self._places: dict[Sequence, QueuePosition] = {}
        self._waiting: list[tuple[QueuePosition, Sequence]] = []  # in order
        self._by_length: list[tuple[int, int, Sequence]] = []  # a heap; some have left
        self._by_due: list[tuple[float, int, Sequence]] = []  # a heap of those who are not late; some have left

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, sequence in self._waiting)

    def insert(self, sequence: Sequence) -> None:
        """Puts a sequence at its place; it is not late before somebody looks."""
        arrival = sequence.id or next(self._coming)
        self.tokens += sequence.to_compute
        self._put(sequence, QueuePosition(urgency(sequence, -inf), arrival))
        heappush(self._by_due, (sequence.due, arrival, sequence))
        heappush(self._by_length, (sequence.to_compute, arrival, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out; it must be in, and need as much as when it came."""
        self._take(sequence)
        self.tokens -= sequence.to_compute
        if len(self._by_length) + len(self._by_due) > 4 * len(self._waiting) + 32:
            self._by_length = [each for each in self._by_length if each[2] in self._places]
            self._by_due = [each for each in self._by_due if each[2] in self._places]
            heapify(self._by_length)
            heapify(self._by_due)

    def first(self, now: float) -> Sequence:
        """Returns the most urgent; there must be one."""
        while self._by_due and self._by_due[0][0] < now:
            _, _, late = heappop(self._by_due)
            if late in self._places:
                self._put(late, QueuePosition(urgency(late, now), self._take(late).arrival))
        return self._waiting[0][1]

    def shortest(self) -> Sequence:
        """Returns the one with the fewest tokens to compute; there must be one."""
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
    """Keeps those who wait for blocks. `now` is on the clock of their deadlines."""

    def __init__(self) -> None:
        self.shares = Shares()
        self.tokens = 0  # that will be computed for those in line, as far as it was known when they came
        self.pairs = 0.0  # of such a token and one that it attends to
        self.owned: Counter[Owner] = Counter()  # of these tokens, without those of who was preempted
        self.lengths = [0] * LENGTH_CLASSES  # of all these tokens, by the length of their prompts
        self._preempted = ArrivalOrder()
        self._tenants: dict[str, TenantQueue] = {}

    def __len__(self) -> int:
        return len(self._preempted) + sum(len(tenant) for tenant in self._tenants.values())

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._preempted
        for tenant in self._tenants.values():
            yield from tenant

    def insert(self, sequence: Sequence) -> None:
        """Puts a sequence in line, `to_compute` tokens of which will be computed."""
        self._count(sequence, 1)
        if sequence.preemptions:
            self._preempted.insert(sequence)
            return
        prompt = sequence.prompt
        tenant = self._tenants.setdefault(prompt.tenant, TenantQueue())
        tenant.weight = prompt.weight
        tenant.insert(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out; it must be in, and need as much as when it came."""
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
        """Returns who comes before everybody else, if there is somebody."""
        return self._preempted.first if len(self._preempted) else None

    def weights(self) -> dict[str, float]:
        """Returns the tenants that have somebody in line who was never preempted, and their weights."""
        return {name: tenant.weight for name, tenant in self._tenants.items()}

    def head(self, tenant: str, now: float) -> Sequence | None:
        """Returns the most urgent of a tenant, without those who were preempted."""
        return self._tenants[tenant].first(now) if tenant in self._tenants else None

    def tokens_of(self, tenant: str) -> int:
        """Counts the tokens that will be computed for a tenant, without those of who was preempted."""
        return self._tenants[tenant].tokens if tenant in self._tenants else 0

    def shortest(self, tenant: str) -> Sequence | None:
        """Returns the one of a tenant with the fewest tokens to compute, without those who were preempted."""
        return self._tenants[tenant].shortest() if tenant in self._tenants else None

    def first(self, now: float) -> Sequence:
        """Returns whose turn it is; there must be somebody."""
        if len(self._preempted):
            return self._preempted.first
        return self._tenants[self.shares.turn(self.weights())].first(now)

    def _count(self, sequence: Sequence, sign: int) -> None:
        tokens = sequence.to_compute
        self.tokens += sign * tokens
        self.pairs += sign * pairs_of(len(sequence.tokens) - tokens, tokens)
        self.lengths[length_class(tokens)] += sign * tokens
        if not sequence.preemptions:
            owner = owner_of(sequence.prompt.tenant, sequence.prompt.weight)
            self.owned[owner] += sign * tokens
            if not self.owned[owner]:
                del self.owned[owner]
