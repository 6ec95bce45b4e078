"""Finds a request's route and decides whether it begins, from what the gateway knows of its workers. No sockets."""

from collections.abc import Collection, Sequence
from typing import Generic

from gateway.errors import APIError
from gateway.requests.entrance import Visit
from gateway.requests.load_account import LoadAccount
from gateway.requests.sample import Sample
from gateway.workers.directory import Known, WorkerDirectory
from gateway.workers.router import Router
from pricing.routes.correction import FirstTokenCorrection
from pricing.routes.route import Choice

ROUTE_RETRY_S = 0.1  # between two searches for a route for a retried sample


class RequestRouting(Generic[Known]):
    """The router with what it is asked, and the verdict with what it expects. `now` is local time, s."""

    def __init__(
        self,
        workers: WorkerDirectory[Known],
        load: LoadAccount[Known],
        correction: FirstTokenCorrection,
        hand_off_always: bool,
    ) -> None:
        self._workers = workers
        self._load = load
        self._correction = correction
        self._router = Router(hand_off_always)

    def choose(self, samples: Sequence[Sample], avoid: Collection[str], now: float) -> Choice | None:
        return self._router.pick(self._workers, self._load.asked(samples), now, avoid)

    def may_begin(self, visit: Visit, choice: Choice) -> bool:
        """Returns whether a request may take a route now. Raises `APIError` if it cannot keep its objective."""
        if (forecast := self._load.forecast(choice)) is not None:
            choice = choice._replace(ttft=self._correction.expected(forecast))
        try:
            return visit.may_begin(choice, self._correction.margin)
        except APIError:
            self._correction.refused()
            raise
