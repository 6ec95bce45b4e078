"""Why no deployment keeps an objective: a limit that no copy keeps, or too few devices, and what would do."""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from pricing.planning.candidates import CopyFormat, candidates
from pricing.planning.load import PlannedLoad
from pricing.planning.roles import ModelCopy, decode, prefill

QUIET_RATE = 1e-9
"""Requests per second at which nothing waits."""
RATE_BISECTIONS = 8
EASED = 1.1
"""A limit that would do is a tenth above what the fastest copy takes."""


def unmet(copies: Mapping[CopyFormat, Sequence[ModelCopy]], load: PlannedLoad) -> list[str]:
    """Returns what no copy meets, however many there are: a sentence for each limit, with what would meet it."""
    quiet = msgspec.structs.replace(load, rate=QUIET_RATE)
    every = [copy for alike in copies.values() for copy in alike]
    first = min(every, key=lambda copy: prefill(copy, 1, quiet).ttft_s)
    second = min(every, key=lambda copy: decode(copy, 1, quiet).tpot_s)
    ttft, tpot = prefill(first, 1, quiet), decode(second, 1, quiet)
    found = []
    if ttft.ttft_s > load.ttft_s:
        found.append(
            f"TTFT {1e3 * load.ttft_s:g} ms: {first.name} alone takes {1e3 * ttft.ttft_s:.3g} ms for a prompt "
            f"({ttft.binds}); --slo-ttft-ms {math.ceil(1e3 * EASED * ttft.ttft_s)} or shorter prompts would do"
        )
    if tpot.tpot_s > load.tpot_s:
        found.append(
            f"TPOT {1e3 * load.tpot_s:g} ms: {second.name} takes {1e3 * tpot.tpot_s:.3g} ms for a step of one sequence "
            f"({tpot.binds}); --slo-tpot-ms {math.ceil(1e3 * EASED * tpot.tpot_s)} would do, or smaller weights"
        )
    return found


def too_few(
    copies: Mapping[CopyFormat, Sequence[ModelCopy]], load: PlannedLoad, available: Mapping[str, int]
) -> Iterator[str]:
    """Yields how many devices would keep the limits at this rate, and which rate the available devices bear."""
    if found := candidates(copies, load):
        needed = " and ".join(f"{count} x {name}" for name, count in found[0].devices().items())
        yield f"{load.rate:g} requests/s need {needed} by estimate; --devices allows {_spelled(available)}"
    low, high = 0.0, load.rate
    for _ in range(RATE_BISECTIONS):
        middle = (low + high) / 2
        calmer = msgspec.structs.replace(load, rate=middle)
        bears = any(each.within(available) for each in candidates(copies, calmer))
        low, high = (middle, high) if bears else (low, middle)
    if low:
        yield f"{_spelled(available)} bear about {low:.2g} requests/s by estimate: a lower --rate would do"


def _spelled(available: Mapping[str, int]) -> str:
    return " and ".join(f"{count} x {name}" for name, count in available.items())
