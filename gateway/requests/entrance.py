"""Decides when a new request begins: at once, in its turn at the gate, or not at all. Counts who is in progress."""

import time
from collections import Counter
from collections.abc import Iterable
from math import inf

from core.config.gateway import GatewayConfig
from core.costs.backlog import owner_of
from core.ids import SampleKey
from gateway.errors import APIError
from gateway.requests.gate import Gate, Waiting
from gateway.requests.pace import Pace
from gateway.requests.request import Request
from gateway.requests.sample import Sample
from gateway.requests.verdict import Answer, judge
from gateway.workers.route import Choice


class Entrance:
    """Knows who is in progress on which decode worker, and how fast each of them wants its tokens."""

    def __init__(self, config: GatewayConfig) -> None:
        self.gate = Gate(config.max_waiting)
        self.pace = Pace()
        self._most = config.max_requests
        self._decodes: dict[SampleKey, tuple[str, float]] = {}  # the worker, and s for each token that it wants
        self._wanted: dict[str, Counter[float]] = {}  # by decode worker, how many want how many s for each token
        self._in_line: dict[str, Waiting] = {}  # by request

    def begins(self, samples: Iterable[Sample], decode: str) -> None:
        """Notes that these samples will be decoded by this worker."""
        for sample in samples:
            self.ends(sample)
            tpot_ms = sample.admitted.objective.tpot_ms
            wanted = inf if tpot_ms is None else tpot_ms / 1000
            self._decodes[sample.key] = decode, wanted
            self._wanted.setdefault(decode, Counter())[wanted] += 1

    def ends(self, sample: Sample) -> None:
        """Notes that a sample is nowhere in progress any more."""
        if (known := self._decodes.pop(sample.key, None)) is None:
            return
        self.pace.ends(sample.key.request, time.monotonic())
        decode, wanted = known
        counts = self._wanted[decode]
        counts[wanted] -= 1
        if not counts[wanted]:
            del counts[wanted]
        if not counts:
            del self._wanted[decode]
        self.gate.look()

    def stands(self, request: str, waiting: Waiting) -> None:
        """Notes that a request stands in line."""
        self._in_line[request] = waiting

    def leaves(self, request: str) -> None:
        """Takes a request out of line, if it is there: it has begun, or it ended while it waited, and hears of it."""
        if (waiting := self._in_line.pop(request, None)) is not None:
            self.gate.leave(waiting)
            waiting.is_head.set()

    def strictest(self, decode: str) -> float | None:
        """Returns the least time, s, in which somebody on a decode worker wants each token; None: nobody says."""
        least = min(self._wanted.get(decode, ()), default=inf)
        return None if least == inf else least

    def strictest_of_all(self) -> dict[str, float]:
        """Returns the same for each decode worker where anybody says it, by its epoch."""
        found = {decode: min(wanted) for decode, wanted in self._wanted.items()}
        return {decode: least for decode, least in found.items() if least < inf}

    def room(self, samples: int) -> bool:
        """Tells whether so many answers more may be in progress."""
        return len(self._decodes) + samples <= self._most


class Visit:
    """Follows a new request from its arrival until it begins, or is refused; a context, which takes it out of line."""

    def __init__(self, entrance: Entrance, request: Request) -> None:
        self._entrance = entrance
        self._request = request
        self._waiting: Waiting | None = None
        wanted = request.samples[0].admitted.objective.ttft_ms
        self._due = inf if wanted is None else request.received + wanted / 1000

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *error: object) -> None:
        self._entrance.leaves(self._request.id)

    def may_begin(self, choice: Choice, sure: float = 1.0) -> bool:
        """Tells whether it may take this route now. Raises `APIError` (429) if it cannot keep its objective.

        `sure`: how many times as long as expected a first token takes, nearly always.
        """
        entrance, request, now = self._entrance, self._request, time.monotonic()
        wanted = request.samples[0].admitted.objective
        its_turn = entrance.gate.is_turn(self._waiting)
        if not its_turn and now <= self._due:
            return False
        strictest = entrance.strictest(choice.route.decode)
        prompt = request.samples[0].prompt
        owner = owner_of(prompt.tenant, prompt.weight)
        ttft = choice.ttft if choice.ttft is None else max(choice.ttft, entrance.pace.wait(choice.tokens, owner, now))
        verdict = judge(ttft, choice.tpot, wanted, now - request.received, strictest, sure)
        if verdict.answer is Answer.REFUSED:
            why, after = verdict.why, verdict.retry_after
            raise APIError(429, why, kind="rate_limit_error", code="objective_out_of_reach", retry_after=after)
        if not its_turn or verdict.answer is Answer.WAITS or not entrance.room(len(request.samples)):
            return False
        if self._waiting is not None:
            entrance.gate.goes(self._waiting, now)
            entrance.leaves(request.id)
            self._waiting = None
        return True

    async def wait(self) -> None:
        """Waits until it is time to look for a route again. Raises `APIError` (429) where the line is full."""
        now, prompt = time.monotonic(), self._request.samples[0].prompt
        if self._waiting is None:
            tokens = len(prompt.token_ids)
            self._waiting = self._entrance.gate.enter(prompt.tenant, prompt.weight, tokens, self._due, now)
            self._entrance.stands(self._request.id, self._waiting)
        until = min(self._due + 0.001, self._request.samples[0].deadline)
        await self._entrance.gate.turn(self._waiting, until, now)
