"""The workers of each role in an order that many requests share, so that a route's cost hardly grows with them. Pure.

A role's workers stand on a ring in the order of their epochs; each request's turn begins at another worker. Workers
with the same load also share a list. A changed load moves one worker from list to list, where a sort for each request
would compare a thousand workers.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter

from gateway.workers.holders import BlockHolders
from gateway.workers.kept_blocks import KeptBlocks
from gateway.workers.worker import Worker

MAX_HOLDERS_SORTED = 64
"""Most holders of a block that are sorted into a turn's order; of more holders, a walk on the ring finds the first."""


class RoleRoster:
    """Workers of one role."""

    def __init__(self, workers: Iterable[Worker], holders: BlockHolders[KeptBlocks]) -> None:
        self.ring = sorted(workers, key=attrgetter("record.epoch"))
        self.contents = {each.kind.content for each in self.ring}
        self.holders = holders
        self.places = {each.kept: at for at, each in enumerate(self.ring)}
        """The place on the ring of the worker with these blocks."""
        self._loads: list[int] = [each.load() for each in self.ring]
        self._by_load: dict[int, list[int]] = {}  # places of the workers with this load, in order
        for at, load in enumerate(self._loads):
            self._by_load.setdefault(load, []).append(at)

    def weigh(self, worker: Worker) -> None:
        """Takes the present load of a worker of this roster."""
        at, load = self.places[worker.kept], worker.load()
        if load == self._loads[at]:
            return
        same = self._by_load[self._loads[at]]
        del same[bisect_left(same, at)]
        if not same:
            del self._by_load[self._loads[at]]
        self._loads[at] = load
        insort(self._by_load.setdefault(load, []), at)

    def by_load(self, first: int) -> Iterator[Worker]:
        """Yields the workers by load, and workers of equal load in the order of the ring from place `first` on."""
        for load in sorted(self._by_load):
            same = self._by_load[load]
            begin = bisect_left(same, first)
            for at in chain(range(begin, len(same)), range(begin)):
                yield self.ring[same[at]]


class RoleTurn:
    """A role's workers that a request may take, in the order of the ring from the place that a turn's number gives."""

    def __init__(self, roster: RoleRoster, turn: int, accepts: Callable[[Worker], bool] | None) -> None:
        """`accepts` tells whether the request may go to a worker; None: it may go to every worker."""
        self._roster = roster
        self._first = turn % len(roster.ring) if roster.ring else 0
        self._accepts = accepts

    def __iter__(self) -> Iterator[Worker]:
        return self._accepted(self._around())

    def by_load(self) -> Iterator[Worker]:
        """Yields the workers with the lowest load first, and workers of equal load in the order of the turn."""
        return self._accepted(self._roster.by_load(self._first))

    def rank(self, worker: Worker) -> int:
        """Returns a worker's position in this turn among all workers of the role."""
        return (self._roster.places[worker.kept] - self._first) % len(self._roster.ring)

    def longest(self, keys: Sequence[int], block_tokens: int, most: int) -> list[Worker]:
        """Returns the workers with the longest beginnings of `keys`, at most about `most`, in no order.

        A worker that has a block has all blocks before it. So the number of leading keys that `most` workers have is
        found by bisection.
        """
        least, end = 0, len(keys)  # `most` workers have `least` keys; fewer workers, `beyond`, have key `end`
        beyond: list[Worker] = []
        while least < end:
            middle = (least + end) // 2 if least else 0  # few prompts share their first block with many workers
            having = list(islice(self._holders(keys[middle], block_tokens), most))
            if len(having) == most:
                least = middle + 1
            else:
                beyond, end = having, middle
        if not least:
            return beyond
        return beyond + [
            each for each in self._first_holders(keys[least - 1], block_tokens, most) if each not in beyond
        ]

    def _accepted(self, workers: Iterator[Worker]) -> Iterator[Worker]:
        return workers if self._accepts is None else filter(self._accepts, workers)

    def _around(self) -> Iterator[Worker]:
        ring = self._roster.ring
        return chain(islice(ring, self._first, None), islice(ring, self._first))

    def _holders(self, key: int, block_tokens: int) -> Iterator[Worker]:
        ring, places = self._roster.ring, self._roster.places
        for kept in self._roster.holders.of(key):
            place = places.get(kept)
            if place is not None and self._fits(worker := ring[place], block_tokens):
                yield worker

    def _first_holders(self, key: int, block_tokens: int, most: int) -> list[Worker]:
        """Returns the first `most` holders of a block in this turn."""
        holders = self._roster.holders.of(key)
        if len(holders) <= MAX_HOLDERS_SORTED:
            return sorted(self._holders(key, block_tokens), key=self.rank)[:most]
        in_turn = (each for each in self._around() if each.kept in holders)
        return list(islice((each for each in in_turn if self._fits(each, block_tokens)), most))

    def _fits(self, worker: Worker, block_tokens: int) -> bool:
        return worker.record.block_tokens == block_tokens and (self._accepts is None or self._accepts(worker))


class Roster:
    """The workers that serve, by their roles."""

    def __init__(self, workers: Iterable[Worker], holders: BlockHolders[KeptBlocks]) -> None:
        by_role: dict[str, list[Worker]] = {"prefill": [], "decode": []}
        for each in workers:
            by_role[each.kind.role].append(each)
        self.prefills, self.decodes = (RoleRoster(by_role[role], holders) for role in ("prefill", "decode"))

    def __len__(self) -> int:
        return len(self.prefills.ring) + len(self.decodes.ring)

    def has(self, worker: Worker) -> bool:
        return worker.kept in self._of(worker).places

    def weigh(self, workers: Iterable[Worker]) -> None:
        """Takes the present loads of workers; workers that are not in this roster are ignored."""
        for each in workers:
            roster = self._of(each)
            if each.kept in roster.places:
                roster.weigh(each)

    def _of(self, worker: Worker) -> RoleRoster:
        return self.prefills if worker.kind.role == "prefill" else self.decodes


NO_WORKERS = RoleRoster((), BlockHolders())
"""The roster of a role from which a request takes no worker."""
