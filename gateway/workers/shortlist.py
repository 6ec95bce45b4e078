"""Picks the workers of a role whose routes are priced: with most of the prompt's KV, and with the least load. Pure.

A price takes some 20 µs a worker, a place on this list far less than one: so a thousand workers cost hardly more than
a dozen.
"""

from collections.abc import Sequence
from heapq import nsmallest

from gateway.workers.kept_blocks import longest
from gateway.workers.worker import Worker
from pricing.routes.route import RouteRequest

MAX_WORKERS_PRICED = 12
"""Workers of each role that are priced, the most promising first: all pairs of them take 0.7 ms."""
MAX_WORKERS_BY_KV = MAX_WORKERS_PRICED // 2


def shortlist(workers: Sequence[Worker], request: RouteRequest) -> list[Worker]:
    """Returns half of `MAX_WORKERS_PRICED` by the KV that they have, the rest by load; equal ones in their order."""
    if len(workers) <= MAX_WORKERS_PRICED:
        return list(workers)
    near = _with_most_kv(workers, request)
    near += _others(workers[:MAX_WORKERS_PRICED], near)[: MAX_WORKERS_BY_KV - len(near)]
    by_load = nsmallest(MAX_WORKERS_PRICED, workers, key=Worker.load)
    return near + _others(by_load, near)[: MAX_WORKERS_PRICED - len(near)]


def _others(workers: Sequence[Worker], than: Sequence[Worker]) -> list[Worker]:
    return [each for each in workers if each not in than]


def _with_most_kv(workers: Sequence[Worker], request: RouteRequest) -> list[Worker]:
    """Returns at most `MAX_WORKERS_BY_KV` workers that have KV of the prompt, most first."""
    found: list[int] = []
    for block_tokens, keys in request.keys.items():
        same = [at for at, each in enumerate(workers) if each.record.block_tokens == block_tokens]
        found += [same[at] for at in longest([workers[at].kept for at in same], keys, MAX_WORKERS_BY_KV)]
    found.sort(key=lambda at: (-workers[at].cached(request.keys), at))
    return [workers[at] for at in found[:MAX_WORKERS_BY_KV]]
