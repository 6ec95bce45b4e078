"""Decides when a new request begins: at once, in its turn at the gate, or not at all. Counts samples in progress."""

import time
from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from contracts.ids import SampleKey
from contracts.slo import Objective
from gateway.errors import APIError
from gateway.requests.gate import Gate, WaitingRequest
from gateway.requests.request import Request
from gateway.requests.sample import Sample
from gateway.requests.verdict import MAX_WAIT_S, EntryDecision, Expected, judge
from infra.config.gateway import GatewayConfig
from pricing.routes.backlog import owner_of
from pricing.routes.route import Choice
from pricing.routes.throughput import PromptThroughput


class Strictest:
    """Counts the samples on each decode worker by their required time per output token, in s."""

    def __init__(self) -> None:
        self.by_worker: dict[str, float] = {}
        """The shortest required time per token by decode worker, for workers with a requirement."""
        self._counts: dict[str, dict[float, int]] = {}

    def add(self, decode: str, seconds: float) -> None:
        counts = self._counts.setdefault(decode, {})
        counts[seconds] = counts.get(seconds, 0) + 1
        if seconds < self.by_worker.get(decode, inf):
            self.by_worker[decode] = seconds

    def remove(self, decode: str, seconds: float) -> None:
        """Removes a sample, which must have been added."""
        counts = self._counts[decode]
        counts[seconds] -= 1
        if counts[seconds]:
            return
        del counts[seconds]
        if not counts:
            del self._counts[decode]
        if seconds < inf and (least := min(counts, default=inf)) > seconds:
            if least < inf:
                self.by_worker[decode] = least
            else:
                del self.by_worker[decode]

    def least(self, decode: str) -> float | None:
        """Returns the shortest required time per token on a decode worker; None without a requirement."""
        return self.by_worker.get(decode)


class DecodePlacement(NamedTuple):
    """The decode worker of a sample, and its required times per token in s; infinite without an objective."""

    worker: str
    wanted: float  # by its objective
    promised: float  # the part of `wanted` for which other requests are held back


class Entrance:
    """The samples in progress on each decode worker, with their required times per token."""

    def __init__(self, config: GatewayConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock  # s
        self.gate = Gate(config.max_waiting)
        self.pace = PromptThroughput()
        self.wanted = Strictest()
        self.promised = Strictest()
        self._most = config.max_requests
        self._decodes: dict[SampleKey, DecodePlacement] = {}
        self._in_line: dict[str, WaitingRequest] = {}  # by request

    def begins(self, samples: Iterable[Sample], decode: str) -> None:
        """Records that these samples will be decoded by the worker `decode`."""
        for sample in samples:
            self.ends(sample)
            admitted = sample.admitted
            known = DecodePlacement(decode, seconds_of(admitted.objective), seconds_of(admitted.promise))
            self._decodes[sample.key] = known
            self.wanted.add(decode, known.wanted)
            self.promised.add(decode, known.promised)

    def ends(self, sample: Sample) -> None:
        """Records that a sample is no longer in progress."""
        if (known := self._decodes.pop(sample.key, None)) is None:
            return
        self.pace.ends(sample.key.request, self.clock())
        self.wanted.remove(known.worker, known.wanted)
        self.promised.remove(known.worker, known.promised)
        self.gate.look()

    def stands(self, request: str, waiting: WaitingRequest) -> None:
        self._in_line[request] = waiting

    def leaves(self, request: str) -> None:
        """Removes a waiting request, if it waits: it has begun or ended. Its task is woken up."""
        if (waiting := self._in_line.pop(request, None)) is not None:
            self.gate.leave(waiting)
            waiting.is_head.set()

    def head(self) -> str:
        """Returns the request at the head of the gate's line; empty if none is known there."""
        return next((request for request, waiting in self._in_line.items() if self.gate.is_turn(waiting)), "")

    def room(self, samples: int) -> bool:
        return len(self._decodes) + samples <= self._most


class Visit:
    """A new request from its arrival until it begins or is refused; a context that removes it from the gate."""

    def __init__(self, entrance: Entrance, request: Request) -> None:
        self._entrance = entrance
        self._request = request
        self._waiting: WaitingRequest | None = None
        self._aside = False  # only an objective held it back at the last check
        self._late = False  # it has been checked since it was due
        wanted = request.samples[0].admitted.objective.ttft_ms
        self._due = request.received + (MAX_WAIT_S if wanted is None else wanted / 1000)

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *error: object) -> None:
        self._entrance.leaves(self._request.id)

    def may_begin(self, choice: Choice, sure: float = 1.0) -> bool:
        """Returns whether the request may take this route now.

        Raises `APIError` (429) if it cannot keep its objective. `sure`: most first tokens come within this many
        times the expected time.
        """
        entrance, request, now = self._entrance, self._request, self._entrance.clock()
        its_turn = entrance.gate.is_turn(self._waiting)
        if not its_turn and now <= self._due:
            return False
        self._late = now > self._due
        prompt, wanted = request.samples[0].prompt, request.samples[0].admitted.objective
        ttft = None if choice.ttft_guessed else choice.ttft
        if ttft is not None:
            owner = owner_of(prompt.tenant, prompt.weight)
            ttft = max(ttft, entrance.pace.wait(choice.tokens, owner, now))
        tpot = None if choice.tpot_guessed else choice.tpot
        expected = Expected(ttft, tpot, choice.fastest, choice.alone, sure)
        verdict = judge(expected, wanted, now - request.received, entrance.promised.least(choice.route.decode))
        if verdict.answer is EntryDecision.REFUSED:
            why, after = verdict.why, verdict.retry_after
            raise APIError(429, why, kind="rate_limit_error", code="objective_out_of_reach", retry_after=after)
        self._aside = its_turn and verdict.answer is EntryDecision.WAITS
        if not its_turn or self._aside or not entrance.room(len(request.samples)):
            return False
        if self._waiting is not None:
            entrance.gate.goes(self._waiting, now)
            entrance.leaves(request.id)
            self._waiting = None
        return True

    def stand(self, now: float) -> tuple[WaitingRequest, float]:
        """Lets the request wait at the gate, and returns until when at most, local time in s.

        Raises `APIError` (429) if too many requests wait.
        """
        sample, gate = self._request.samples[0], self._entrance.gate
        if self._waiting is None:
            prompt = sample.prompt
            self._waiting = gate.enter(prompt.tenant, prompt.weight, len(prompt.token_ids), self._due, now)
            self._entrance.stands(self._request.id, self._waiting)
        if self._aside:
            gate.steps_aside(self._waiting)
            self._aside = False
        until = inf if self._late else self._due + 0.001
        return self._waiting, min(until, sample.deadline)

    def checked(self) -> None:
        """Puts a waiting request back in line for its next check. Raises `APIError` if it was refused meanwhile."""
        if self._waiting is not None:
            self._entrance.gate.checked(self._waiting)

    async def wait(self) -> None:
        """Waits until a route should be searched again. Raises `APIError` (429) if too many requests wait."""
        now = self._entrance.clock()
        waiting, until = self.stand(now)
        await self._entrance.gate.turn(waiting, until, now)


def seconds_of(objective: Objective) -> float:
    """Returns the required time per output token in s, infinite without one."""
    return inf if objective.tpot_ms is None else objective.tpot_ms / 1000
