"""Measures one row: right first, then fast, then beside PyTorch."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Target, close
from benchmarks.limits.device_time import Limits, seconds_of


@dataclass(frozen=True)
class Row:
    """Holds a line of the table. Seconds are None in the interpreter, whose time says nothing."""

    kernel: str
    shape: str
    limit: Limit
    seconds: float | None = None
    rate: float | None = None
    """Bytes or floating-point operations per second."""
    share: float | None = None
    """Of what the device copies or multiplies at most."""
    peers: dict[str, float | None] = field(default_factory=dict)
    """Seconds; None where it cannot do this."""
    target: str = ""
    met: bool | None = None
    error: str = ""

    @property
    def best_peer(self) -> tuple[str, float] | None:
        """Returns the fastest peer, with its seconds."""
        found = [(seconds, name) for name, seconds in self.peers.items() if seconds is not None]
        return min(found)[::-1] if found else None


def measure(
    kernel: str,
    shape: str,
    limit: Limit,
    target: Target | None,
    case: Case,
    device: torch.device,
    limits: Limits | None,
) -> Row:
    """Measures a row; without `limits` nothing is timed. Raises AssertionError for a wrong result."""
    wanted = str(target) if target else ""
    with torch.inference_mode():
        case.check(None)
        ours = case.run(None)
        if limits is None:
            for name, peer in case.peers.items():
                _agrees(name, peer(), ours)
            return Row(kernel, shape, limit, target=wanted)
        seconds = seconds_of(lambda: case.run(None), device)
        peers = {name: _peer(case, name, ours, device) for name in case.peers}
    work, most = (case.bytes, limits.copy) if limit == "copy" else (case.operations, limits.multiply)
    row = Row(kernel, shape, limit, seconds, work / seconds, work / seconds / most, peers, wanted)
    if target is None or row.share is None:
        return row
    best = row.best_peer
    met = row.share >= target.share if target.share else best is not None and seconds <= best[1]
    return Row(kernel, shape, limit, seconds, row.rate, row.share, peers, wanted, met)


def _peer(case: Case, name: str, ours: object, device: torch.device) -> float | None:
    """Returns a peer's seconds; None where the shape is not for it, or too large for the device's memory by its way."""
    with quiet():
        try:
            _agrees(name, case.peers[name](), ours)
            return seconds_of(case.peers[name], device)
        except Exception as error:  # a library's own, whatever it is
            print(f"{name}: {str(error).strip().partition(chr(10))[0][:200]}")
            return None


def _agrees(name: str, theirs: object, ours: object) -> None:
    """Tells whether a peer does the same work; otherwise it would be no measure."""
    if isinstance(theirs, Tensor) and isinstance(ours, Tensor):
        try:
            close(theirs, ours)
        except AssertionError as error:
            raise RuntimeError(f"{name} gives another result: {error}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Silences backends that do not take a shape, and warn of it in several sentences each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
