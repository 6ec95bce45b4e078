"""Chooses an attempt's workers among workers with compatible KV: the lowest price, else the least load. Pure.

The price of each route is estimated in `pricing/routes/price.py`, from the workers' reports of their steps, their
backlogs and their cached KV. If the step costs of any worker are unknown, load decides.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import chain

from gateway.workers.directory import Known, WorkerDirectory
from gateway.workers.roster import NO_WORKERS, RoleRoster, RoleTurn, Roster
from gateway.workers.shortlist import shortlist
from gateway.workers.worker import Worker
from pricing.routes.candidate import Candidate
from pricing.routes.links import Nearness, nearness
from pricing.routes.pooled import KeptPools
from pricing.routes.price import RouteEstimate, equal_up_to, prices
from pricing.routes.route import Choice, Route, RouteRequest


class Router:
    """Picks routes. Equal workers take turns."""

    def __init__(self, hand_off_always: bool = False) -> None:
        """`hand_off_always`: no short path while there is a prefill worker."""
        self._turn = 0
        self._hand_off_always = hand_off_always
        self._pools = KeptPools()

    def pick(
        self, workers: WorkerDirectory[Known], request: RouteRequest, now: float, avoid: Collection[str] = ()
    ) -> Choice | None:
        """Returns a route over workers that have the prompt's adapter, or None; `now` is local time, s.

        Workers whose epochs are in `avoid`, or that are late, are used only if there is no other worker. KV passes only
        between workers with compatible KV. Without a fitting prefill worker, a decode worker takes the whole request,
        and without a decode worker a prefill worker does. A prompt that is pooled goes to one worker: a prefill worker,
        if there is one that is not a last resort.
        """
        self._turn += 1
        roster = workers.serving(request.adapter)
        prefills, decodes = self._turns(roster, request, avoid)
        senders, receivers = shortlist(prefills, request), shortlist(decodes, request)
        if not receivers:
            return None
        pools = self._pools.of(len(roster), chain(prefills, decodes), [*senders, *receivers], now)
        firsts = [each.candidate(request, now, avoid) for each in senders]
        seconds = [each.candidate(request, now, avoid) for each in receivers]
        if not all([pool.known for pool in pools.values()] + [each.costs.known for each in (*firsts, *seconds)]):
            firsts = [each.candidate(request, now, avoid) for each in prefills]
            seconds = [each.candidate(request, now, avoid) for each in decodes]
            return least_loaded(firsts, seconds, request.tokens)
        routes = prices(firsts, seconds, pools, request, self._hand_off_always)
        return cheapest(routes)._replace(fastest=min([each.costs.fastest for each in seconds]))

    def _turns(self, roster: Roster, request: RouteRequest, avoid: Collection[str]) -> tuple[RoleTurn, RoleTurn]:
        """Returns the prefill workers that may compute the prompt, and the workers that may decode the request."""

        def turn(of: RoleRoster, accepts: Callable[[Worker], bool] | None = None) -> RoleTurn:
            return RoleTurn(of, self._turn, accepts)

        none = turn(NO_WORKERS)
        if request.pooled:
            able = turn(roster.prefills, lambda each: not each.late and each.epoch not in avoid)
            if any(able):
                return none, able
        if request.pooled or not roster.decodes.ring:
            return none, turn(roster.decodes if roster.decodes.ring else roster.prefills)
        fitting = roster.prefills.contents & roster.decodes.contents
        if not fitting:
            return none, turn(roster.decodes)
        if roster.prefills.contents == roster.decodes.contents:
            return turn(roster.prefills), turn(roster.decodes)

        def fits(worker: Worker) -> bool:
            return worker.kind.content in fitting

        return turn(roster.prefills, fits), turn(roster.decodes, fits)


def cheapest(estimates: Sequence[RouteEstimate]) -> Choice:
    """Chooses the lowest price among the routes with the fewest reasons against them; `_wear` decides among equals."""
    best = min(estimates, key=lambda each: (each.last_resort, each.price))
    highest = equal_up_to(best.price)
    equal = [each for each in estimates if each.last_resort == best.last_resort and each.price <= highest]
    chosen = min(equal, key=_wear)
    prompt, decode = chosen.prompt, chosen.decode
    first, second = prompt.candidate, decode.candidate
    return Choice(
        Route("" if first.epoch == second.epoch else first.epoch, second.epoch),
        prompt.tokens,
        prompt.start,
        prompt.ttft,
        decode.tpot,
        prompt.seconds,
        ttft_guessed=first.idle and not first.costs.steps,
        tpot_guessed=second.idle and not second.costs.fastest,
        alone=second.idle,
    )


def _wear(route: RouteEstimate) -> tuple[int, Nearness, int]:
    """Orders routes of equal price: tokens to compute and to move, then distance, then load."""
    first, second = route.prompt.candidate, route.decode.candidate
    far = nearness(first.location, second.location)
    return route.prompt.tokens + route.decode.missing, far, first.load + second.load


def least_loaded(prefills: Sequence[Candidate], decodes: Sequence[Candidate], tokens: int) -> Choice:
    """Chooses by load: first a decode worker, then a prefill worker that can hand KV over to it."""
    reached = [each for each in decodes if any(first.reaches(each) for first in prefills)]
    decode = min(reached or decodes, key=_load)
    prefills = [each for each in prefills if each.reaches(decode)]
    first = min(prefills, key=lambda each: (*_load(each), nearness(each.location, decode.location)), default=decode)
    start = min(first.cached, tokens - 1)
    return Choice(Route(first.epoch if prefills else "", decode.epoch), tokens - start, start)


def _load(worker: Candidate) -> tuple[tuple[bool, bool, bool], int, float]:
    return worker.last_resort, worker.load, round(worker.kv_use, 1)
