"""Finds the runs of load generators that lie in a window, from their marks. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from infra.redis.records import RunMark

MAX_UNENDED_S = 3600.0
"""Longest time for which a run without a mark of its end is shown: its generator may have died."""


class LoadRun(NamedTuple):
    """A run; ages are s relative to now, within the window."""

    name: str
    began: float
    ended: float


def load_runs(marks: Sequence[RunMark], now: float, window: float) -> list[LoadRun]:
    """Returns the runs in the order of their beginnings; `now` and `window` in s."""
    ends = {mark.run: mark.at for mark in marks if mark.ended}
    found = []
    for mark in marks:
        if mark.ended:
            continue
        end = ends.get(mark.run, min(now, mark.at + MAX_UNENDED_S))
        if end > now - window:
            found.append(LoadRun(mark.name, max(mark.at - now, -window), min(end - now, 0.0)))
    return found
