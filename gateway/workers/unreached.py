"""Pairs of this deployment that cannot connect, logged once at their beginning and once at their end. Pure.

A prefill worker's record names the decode workers that it cannot connect to; discovery knows the workers that this
gateway cannot connect to. A pair ends without a log line when one of its ends is dead or has left.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from infra.redis.records import WorkerRecord

MAX_LOGGED_PAIRS = 8  # pairs named in one log line


class UnreachedPair(Struct, frozen=True):
    """Sender that cannot connect to a receiver."""

    sender: str  # epoch of a prefill worker or a gateway
    receiver: str  # epoch of a worker
    address: str  # endpoint of the receiver
    text: str  # for people


class UnreachedPairs:
    """Pairs that cannot connect now."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self.pairs: tuple[UnreachedPair, ...] = ()

    def look(self, there: Mapping[str, WorkerRecord], missed: Iterable[WorkerRecord]) -> list[str]:
        """Takes the live workers, and the workers that this gateway cannot connect to; returns lines for the log."""
        missed = list(missed)
        now = [self._missed(record) for record in missed]
        for record in there.values():
            for peer in record.unreached:
                if peer.peer in there:
                    now.append(_pair(record, there[peer.peer], peer.address))
        new = [pair for pair in now if pair not in self.pairs]
        living = {*there, self._gateway}
        over = [pair for pair in self.pairs if pair not in now and {pair.sender, pair.receiver} <= living]
        self.pairs = tuple(now)
        lines = [f"no way {_named(new)}: requests take others"] if new else []
        return [*lines, f"there is a way again {_named(over)}"] if over else lines

    def _missed(self, record: WorkerRecord) -> UnreachedPair:
        text = f"from this gateway to {record.role} worker {record.epoch} at {record.address}"
        return UnreachedPair(self._gateway, record.epoch, record.address, text)


def _pair(sender: WorkerRecord, receiver: WorkerRecord, address: str) -> UnreachedPair:
    ends = f"from {sender.role} worker {sender.epoch} at {sender.address} to {receiver.role} worker {receiver.epoch}"
    return UnreachedPair(sender.epoch, receiver.epoch, address, f"{ends} at {address}")


def _named(pairs: list[UnreachedPair]) -> str:
    more = f"; and {len(pairs) - MAX_LOGGED_PAIRS} more" if len(pairs) > MAX_LOGGED_PAIRS else ""
    return "; ".join(pair.text for pair in pairs[:MAX_LOGGED_PAIRS]) + more
