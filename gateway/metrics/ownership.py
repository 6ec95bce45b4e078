"""Decides which gateway exposes a worker's metrics, so that a sum over all gateways counts each worker once.

Rendezvous hashing over the gateways that are alive: all gateways decide alike without a word between them, and when a
gateway comes or goes, only its share of the workers changes hands. Gateways that share a port are one: any of them
answers for all. Pure.
"""

from collections.abc import Collection, Iterable

import xxhash

from infra.redis.records import GatewayRecord, WorkerRecord


def page_name(gateway: GatewayRecord) -> str:
    """Returns what names a gateway's page of metrics: its port's group, or else its own life."""
    return gateway.group or gateway.epoch


def lasting_name(worker: WorkerRecord) -> str:
    """Returns a name that a worker keeps when it is started again; without a launcher, its life's name."""
    return f"{worker.place.host} {worker.service or worker.epoch}"


class PageOwner:
    """The pages of the gateways that are alive, seen by the gateway with the page `own`."""

    def __init__(self, own: str, gateways: Iterable[GatewayRecord] = ()) -> None:
        self._own = own
        self._pages: Collection[str] = {own, *map(page_name, gateways)}

    def owns(self, worker: WorkerRecord) -> bool:
        """Returns whether the worker's metrics are on the own page, and on no other."""
        name = lasting_name(worker)
        return max(self._pages, key=lambda page: (xxhash.xxh64_intdigest(f"{page} {name}".encode()), page)) == self._own
