"""Picks the workers of a role whose routes are priced: with most of the prompt's KV, and with the least load. Pure.

A price takes some 20 µs a worker, so a thousand workers should cost hardly more than a dozen.
"""

from collections.abc import Sequence
from itertools import islice

from gateway.workers.roster import RoleTurn
from gateway.workers.worker import Worker
from pricing.routes.route import RouteRequest

MAX_WORKERS_PRICED = 12
"""Workers of each role that are priced, the most promising first: all pairs of them take 0.7 ms."""
MAX_WORKERS_BY_KV = MAX_WORKERS_PRICED // 2


def shortlist(workers: RoleTurn, request: RouteRequest) -> list[Worker]:
    """Returns up to `MAX_WORKERS_PRICED` workers: half by their KV of the prompt, the rest by load; ties in turn."""
    first = list(islice(workers, MAX_WORKERS_PRICED + 1))
    if len(first) <= MAX_WORKERS_PRICED:
        return first
    near = _with_most_kv(workers, request)
    near += _others(first[:MAX_WORKERS_PRICED], near)[: MAX_WORKERS_BY_KV - len(near)]
    by_load = list(islice(workers.by_load(), MAX_WORKERS_PRICED))
    return near + _others(by_load, near)[: MAX_WORKERS_PRICED - len(near)]


def _others(workers: Sequence[Worker], than: Sequence[Worker]) -> list[Worker]:
    return [each for each in workers if each not in than]


def _with_most_kv(workers: RoleTurn, request: RouteRequest) -> list[Worker]:
    """Returns at most `MAX_WORKERS_BY_KV` workers that have KV of the prompt, most first."""
    found: list[Worker] = []
    for block_tokens, keys in request.keys.items():
        found += workers.longest(keys, block_tokens, MAX_WORKERS_BY_KV)
    found.sort(key=lambda each: (-each.cached(request.keys), workers.rank(each)))
    return found[:MAX_WORKERS_BY_KV]
