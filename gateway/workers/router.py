"""Chooses the workers of an attempt among those whose KV means the same: by what it costs, else the least loaded. Pure.

What it costs is predicted (`expected.py`) from what workers say of their steps, of what is before them and of the KV
that they have. Where one of them has not said what its steps cost, load decides.
"""

from collections.abc import Collection, Iterable, Sequence
from math import inf
from operator import or_

from gateway.workers.expected import (
    Computed,
    Decoded,
    alone,
    handed_over,
    link_rates,
    on_decode,
    on_prefill,
    overlap,
    promising,
)
from gateway.workers.kinds import believed
from gateway.workers.route import Asked, Choice, Route
from gateway.workers.worker import Worker
from pricing.places import Nearness, Place, nearness

MAX_WORKERS_COMPARED = 12
"""Workers of a role that are looked at closely, in 0.7 ms with all pairs: those that promise most."""
ALIKE = 0.05
"""What costs no more than this share, and `ALIKE_SECONDS`, above the best is as good: see `_wear`."""
ALIKE_SECONDS = 0.001


class Router:
    """Picks routes. Equally loaded workers take turns."""

    def __init__(self, hand_off_always: bool = False) -> None:
        """Begins with anybody's turn. `hand_off_always`: no short path while there is a prefill worker."""
        self._turn = 0
        self._hand_off_always = hand_off_always

    def pick(self, workers: Iterable[Worker], asked: Asked, now: float, avoid: Collection[str] = ()) -> Choice | None:
        """Returns a route over workers that have the prompt's adapter, or None without one; `now` is local time, s.

        `avoid` holds epochs that are taken only if nobody else is there, as are those that are late. KV passes only
        between workers whose KV means the same. Where no prefill worker fits, a decode worker takes the whole request,
        and without a decode worker a prefill worker does.
        """
        usable = [worker for worker in workers if worker.usable and not worker.record.draining]
        usable = [worker for worker in usable if worker.has(asked.adapter)]
        prefills = [worker for worker in usable if worker.record.role == "prefill"]
        decodes = [worker for worker in usable if worker.record.role == "decode"]
        fitting = {worker.record.content for worker in prefills} & {worker.record.content for worker in decodes}
        if not decodes:
            decodes, prefills = prefills, []
        elif fitting:
            decodes = [worker for worker in decodes if worker.record.content in fitting]
            prefills = [worker for worker in prefills if worker.record.content in fitting]
        else:
            prefills = []
        if not decodes:
            return None
        self._turn += 1
        if not all(worker.costs.known for worker in (*prefills, *decodes)):
            return self._by_load(prefills, decodes, asked, now, avoid)
        return self._by_cost(prefills, decodes, asked, now, avoid)

    def _by_load(
        self,
        prefills: Sequence[Worker],
        decodes: Sequence[Worker],
        asked: Asked,
        now: float,
        avoid: Collection[str],
    ) -> Choice:
        reached = [worker for worker in decodes if any(_passes(first, worker, now) for first in prefills)]
        decode = self._least_loaded(reached or decodes, asked.tokens, avoid)
        prefills = [worker for worker in prefills if _passes(worker, decode, now)]
        first = self._least_loaded(prefills, asked.tokens, avoid, decode.record.place) if prefills else decode
        start = min(overlap(first, asked), asked.tokens - 1)
        route = Route(first.record.epoch if prefills else "", decode.record.epoch)
        return Choice(route, asked.tokens - start, start)

    def _least_loaded(
        self, workers: Sequence[Worker], tokens: int, avoid: Collection[str], near: Place | None = None
    ) -> Worker:
        def cost(worker: Worker) -> tuple[bool, bool, bool, int, float, int]:
            avoided = worker.record.epoch in avoid
            far = 0 if near is None else nearness(worker.record.place, near)
            return worker.late, avoided, worker.full(tokens), worker.load(), round(worker.kv_use(), 1), far

        return min(self._in_turn(workers), key=cost)

    def _by_cost(
        self,
        prefills: Sequence[Worker],
        decodes: Sequence[Worker],
        asked: Asked,
        now: float,
        avoid: Collection[str],
    ) -> Choice:
        costs = believed((*prefills, *decodes))
        firsts = [
            on_prefill(worker, costs[worker.record.epoch], asked, now)
            for worker in promising(self._in_turn(prefills), asked, MAX_WORKERS_COMPARED)
        ]
        seconds = [
            on_decode(worker, costs[worker.record.epoch], asked, now)
            for worker in promising(self._in_turn(decodes), asked, MAX_WORKERS_COMPARED)
        ]
        ours = {each.worker.record.epoch: (*_last_choices(each.worker, asked, avoid), False) for each in firsts}
        rates = link_rates([*(each.worker for each in firsts), *(each.worker for each in seconds)])
        found: list[tuple[tuple[bool, ...], float, Computed, Decoded]] = []
        for second in seconds:
            theirs = (*_last_choices(second.worker, asked, avoid), _slows(second, asked))
            pairs = [first for first in firsts if _passes(first.worker, second.worker, now)]
            for first in pairs:
                rank = tuple(map(or_, ours[first.worker.record.epoch], theirs))
                found.append((rank, handed_over(first, second, rates), first, second))
            short = None if pairs and self._hand_off_always else alone(second, asked)
            if short is None and not pairs:
                short = alone(second, asked._replace(tpots={}))  # nobody else can
            if short is not None:
                found.append((theirs, short[1], short[0], second))
        best = min(found, key=lambda one: one[:2])
        alike = [one for one in found if one[0] == best[0] and one[1] <= (1 + ALIKE) * best[1] + ALIKE_SECONDS]
        _, _, first, second = min(alike, key=_wear)
        decode = second.worker.record.epoch
        prefill = "" if first.worker is second.worker else first.worker.record.epoch
        shown = [each.worker.costs.fastest for each in seconds]
        return Choice(
            Route(prefill, decode),
            first.tokens,
            first.start,
            first.ttft,
            second.tpot,
            first.seconds,
            ttft_guessed=first.worker.idle(now) and not first.worker.costs.steps,
            tpot_guessed=second.worker.idle(now) and not second.worker.costs.fastest,
            alone=second.worker.idle(now),
            fastest=min(shown),
        )

    def _in_turn(self, workers: Sequence[Worker]) -> list[Worker]:
        ordered = sorted(workers, key=lambda worker: worker.record.epoch)
        shift = self._turn % len(ordered) if ordered else 0
        return ordered[shift:] + ordered[:shift]


def _last_choices(worker: Worker, asked: Asked, avoid: Collection[str]) -> tuple[bool, bool, bool]:
    """Orders workers that are only taken if no other is there: late ones, then avoided ones, then full ones."""
    return worker.late, worker.record.epoch in avoid, worker.full(asked.tokens)


def _slows(second: Decoded, asked: Asked) -> bool:
    """Tells whether tokens would come too slowly on a decode worker, for these samples or for others there.

    At the gate they would wait for a better moment, although another route may be good enough now.
    """
    return second.tpot > min(asked.tpot, asked.tpots.get(second.worker.record.epoch, inf))


def _passes(first: Worker, second: Worker, now: float) -> bool:
    """Tells whether KV of a prefill worker can go to a decode worker, as far as anybody knows."""
    return first.record.content == second.record.content and first.reaches(second.record.epoch, now)


def _wear(found: tuple[tuple[bool, ...], float, Computed, Decoded]) -> tuple[int, Nearness, int]:
    """Orders routes that cost about the same: by what has to be computed and moved anew, how far, then by load."""
    _, _, first, second = found
    far = nearness(first.worker.record.place, second.worker.record.place)
    return first.tokens + second.missing, far, first.worker.load() + second.worker.load()
