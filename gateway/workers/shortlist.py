"""Picks the workers of a role whose routes are priced: with the least load, and with more of the prompt's KV. Pure.

A price takes some 20 µs a worker, so a thousand workers should cost hardly more than a dozen.
"""

from collections.abc import Iterable
from itertools import islice

from gateway.workers.roster import RoleTurn
from gateway.workers.worker import Worker
from pricing.routes.route import RouteRequest

MAX_WORKERS_PRICED = 12
"""Workers of each role that are priced, the most promising first: all pairs of them take 0.7 ms."""
MAX_WORKERS_BY_KV = MAX_WORKERS_PRICED // 2
MAX_WORKERS_BY_LOAD = MAX_WORKERS_PRICED - MAX_WORKERS_BY_KV


def shortlist(workers: RoleTurn, request: RouteRequest) -> list[Worker]:
    """Returns up to `MAX_WORKERS_PRICED` workers: the least loaded, and workers with more KV of the prompt than these.

    With less load and as much KV, each of the former would have the lower price. Ties go in turn.
    """
    first = list(islice(workers, MAX_WORKERS_PRICED + 1))
    if len(first) <= MAX_WORKERS_PRICED:
        return first
    idle = _least_loaded(each for each in workers.by_load() if not each.late) or _least_loaded(workers.by_load())
    most = max([each.cached(request.keys) for each in idle])
    return _with_more_kv(workers, request, most) + idle


def _least_loaded(by_load: Iterable[Worker]) -> list[Worker]:
    return list(islice(by_load, MAX_WORKERS_BY_LOAD))


def _with_more_kv(workers: RoleTurn, request: RouteRequest, than: int) -> list[Worker]:
    """Returns at most `MAX_WORKERS_BY_KV` workers that have KV of more than `than` tokens of the prompt, most first."""
    found: list[Worker] = []
    for block_tokens, keys in request.keys.items():
        found += workers.longest(keys[than // block_tokens :], block_tokens, MAX_WORKERS_BY_KV)
    found.sort(key=lambda each: (-each.cached(request.keys), workers.rank(each)))
    return found[:MAX_WORKERS_BY_KV]
