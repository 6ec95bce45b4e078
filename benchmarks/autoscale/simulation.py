"""Runs a trace over simulated workers that a scaler adds and removes.

Prompts go to the prefill worker that is free first, sequences to the decode worker with the fewest sequences, as the
gateway's router does without a cache; without room, requests wait. The scaler gets what a gateway publishes, from the
gateway's own code.
"""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from benchmarks.autoscale.trace import Arrival
from benchmarks.autoscale.workers import Decode, Prefill, Simulated
from contracts.slo import SLO
from gateway.workers.standing import StandingSurvey
from launcher.autoscale.policy import ScalingChange, ScalingInput
from pricing.demand import Demand
from pricing.route import Choice, Route
from pricing.standing import Standing
from pricing.steps import StepCosts, pairs_of

LOOK_SECONDS = 5.0
PROGRESS_SECONDS = 600.0  # without a scaler
ARRIVES, DECODES, ENDS, STARTED, LOOKS = range(5)


class Machine(NamedTuple):
    """Every worker of a deployment."""

    costs: StepCosts
    blocks: int  # of KV
    start: float  # s from the decision to the first request


class Scaler(Protocol):
    """Decides on changes."""

    def look(self, seen: ScalingInput, now: float) -> ScalingChange | None:
        """Returns a change that is due, or None."""


class Came(NamedTuple):
    """Results of a trace."""

    requests: int
    good: int  # that met their objective
    worker_seconds: float
    changes: int
    most_in_an_hour: int  # changes
    reversals: int  # changes of a role in the other way than its last one, within half an hour


class Simulation:
    """Runs one trace."""

    def __init__(self, machine: Machine, slo: SLO, scaler: Scaler | None, prefill: int, decode: int) -> None:
        self._machine, self._slo, self._scaler = machine, slo, scaler
        self._wanted = {"prefill": prefill, "decode": decode}
        self._made = 0
        self._prefills: list[Prefill] = []
        self._decodes: list[Decode] = []
        for role, count in self._wanted.items():
            for _ in range(count):
                self._add(role, 0.0, 0.0)
        self._demand = Demand(0.0)
        self._events: list[tuple[float, int, int, object, int]] = []
        self._number = 0
        self._first: dict[int, float] = {}  # when each request that decodes had its first token
        self._arrivals: dict[int, Arrival] = {}
        self._lengths: dict[int, int] = {}
        self._line: deque[int] = deque()  # requests that wait for room
        self._requests = self._good = 0
        self._paid = 0.0
        self._changes: list[tuple[float, ScalingChange]] = []

    def run(self, arrivals: Iterable[Arrival], progress: Callable[[float], None]) -> Came:
        """Runs to the last answer. `progress` gets the simulated time, s."""
        coming = iter(arrivals)
        self._next(coming)
        self._push(LOOK_SECONDS if self._scaler is not None else PROGRESS_SECONDS, LOOKS)
        now = 0.0
        while self._events:
            now, kind, _, what, version = heappop(self._events)
            if kind == ARRIVES:
                assert isinstance(what, Arrival)
                self._arrived(what, now)
                self._next(coming)
            elif kind == DECODES:
                assert isinstance(what, int)
                self._line.append(what)
                self._place(now)
            elif kind == ENDS:
                assert isinstance(what, Decode)
                if what.version == version:
                    self._ended(what, now)
            elif kind == STARTED:
                assert isinstance(what, str)
                self._add(what, now, self._machine.start)
                self._place(now)
            else:
                progress(now)
                if self._scaler is not None:
                    self._look(self._scaler, now)
                if self._events:
                    self._push(now + (LOOK_SECONDS if self._scaler is not None else PROGRESS_SECONDS), LOOKS)
        for one in (*self._prefills, *self._decodes):
            self._paid += now - one.since
        at = [when for when, _ in self._changes]
        most = max([sum(0 <= other - when < 3600 for other in at) for when in at], default=0)
        return Came(self._requests, self._good, self._paid, len(at), most, self._reversals())

    def _reversals(self) -> int:
        count, last = 0, dict[str, tuple[float, int]]()
        for at, change in self._changes:
            when, by = last.get(change.role, (-1e9, change.by))
            count += by != change.by and at - when < 1800
            last[change.role] = at, change.by
        return count

    def _push(self, at: float, kind: int, what: object = None, version: int = 0) -> None:
        self._number += 1
        heappush(self._events, (at, kind, self._number, what, version))

    def _next(self, coming: Iterable[Arrival]) -> None:
        if (arrival := next(iter(coming), None)) is not None:
            self._push(arrival.at, ARRIVES, arrival)

    def _add(self, role: str, now: float, start: float) -> None:
        self._made += 1
        costs, blocks = self._machine.costs, self._machine.blocks
        one: Simulated
        if role == "prefill":
            self._prefills.append(one := Prefill(f"p{self._made}", costs, blocks, now))
        else:
            self._decodes.append(one := Decode(f"d{self._made}", costs, blocks, now))
        one.since = now - start

    # requests -------------------------------------------------------------------------------------------------------

    def _arrived(self, arrival: Arrival, now: float) -> None:
        self._requests += 1
        request = self._requests
        costs = self._machine.costs
        seconds = costs.prompt_seconds(arrival.prompt, pairs_of(0, arrival.prompt))
        self._demand.came(Choice(Route("p", "d"), arrival.prompt, 0, seconds=seconds), now)
        worker = min((one for one in self._prefills if not one.draining), key=lambda one: one.free_at)
        first = worker.take(arrival.prompt, now)
        self._arrivals[request], self._first[request] = arrival, first
        self._lengths[request] = arrival.prompt + arrival.answer
        self._push(first, DECODES, request)

    def _place(self, now: float) -> None:
        while self._line:
            request = self._line[0]
            able = [one for one in self._decodes if not one.draining and one.has_room(self._lengths[request])]
            if not able:
                return
            self._line.popleft()
            worker = min(able, key=len)
            arrival = self._arrivals[request]
            worker.take(request, arrival.prompt, arrival.answer, now)
            self._push(worker.next_end(), ENDS, worker, worker.version)

    def _ended(self, worker: Decode, now: float) -> None:
        request = worker.end(now, self._lengths)
        arrival, first = self._arrivals.pop(request), self._first.pop(request)
        del self._lengths[request]
        tpot = (now - first) / (arrival.answer - 1)
        self._good += self._slo.met(1000 * (first - arrival.at), 1000 * tpot)
        if len(worker):
            self._push(worker.next_end(), ENDS, worker, worker.version)
        self._place(now)

    # workers --------------------------------------------------------------------------------------------------------

    def _look(self, scaler: Scaler, now: float) -> None:
        self._prefills = [one for one in self._prefills if not self._left(one, now, one.is_idle(now))]
        self._decodes = [one for one in self._decodes if not self._left(one, now, not len(one))]
        change = scaler.look(ScalingInput(self._standing(now), 0.0, self._wanted), now)
        if change is None:
            return
        self._changes.append((now, change))
        self._wanted[change.role] += change.by
        if change.by > 0:
            self._push(now + self._machine.start, STARTED, change.role)
            return
        for one in (*self._prefills, *self._decodes):
            if one.name == change.worker:
                one.drain()

    def _left(self, one: Simulated, now: float, is_idle: bool) -> bool:
        if not one.draining or not is_idle:
            return False
        self._paid += now - one.since
        return True

    def _standing(self, now: float) -> Standing:
        workers: list[Simulated] = [*self._prefills, *self._decodes]
        for one in workers:
            one.report(now, len(self._line) // max(1, len(self._decodes)) if isinstance(one, Decode) else 0)
        look = StandingSurvey([one.worker for one in workers], self._demand, now)
        for _ in look.steps():
            pass
        return look.standing(0)
