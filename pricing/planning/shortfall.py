"""Why no deployment keeps an objective: a limit that no copy keeps, or too few devices; and what would suffice."""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from pricing.planning.candidates import CopyFormat, candidates
from pricing.planning.load import PlannedLoad
from pricing.planning.roles import ModelCopy, decode, prefill

QUIET_RATE = 1e-9
"""Requests per second at which no request waits."""
RATE_BISECTIONS = 8
LIMIT_MARGIN = 1.1
"""Ratio of the limit that a sentence proposes to the time that the fastest copy takes."""


def unmet(copies: Mapping[CopyFormat, Sequence[ModelCopy]], load: PlannedLoad) -> list[str]:
    """Returns a sentence for each limit that no number of copies of any kind meets, with a limit that could be met."""
    quiet = msgspec.structs.replace(load, rate=QUIET_RATE)
    every = [copy for alike in copies.values() for copy in alike]
    first = min(every, key=lambda copy: prefill(copy, 1, quiet).ttft_s)
    second = min(every, key=lambda copy: decode(copy, 1, quiet).tpot_s)
    ttft, tpot = prefill(first, 1, quiet), decode(second, 1, quiet)
    found = []
    if ttft.ttft_s > load.ttft_s:
        found.append(
            f"TTFT {1e3 * load.ttft_s:g} ms: {first.name} alone takes {1e3 * ttft.ttft_s:.3g} ms for a prompt "
            f"({ttft.binds}); --slo-ttft-ms {math.ceil(1e3 * LIMIT_MARGIN * ttft.ttft_s)} or shorter prompts would do"
        )
    if tpot.tpot_s > load.tpot_s:
        found.append(
            f"TPOT {1e3 * load.tpot_s:g} ms: {second.name} takes {1e3 * tpot.tpot_s:.3g} ms for a step of one sequence "
            f"({tpot.binds}); --slo-tpot-ms {math.ceil(1e3 * LIMIT_MARGIN * tpot.tpot_s)} would do, or smaller weights"
        )
    return found


def too_few(
    copies: Mapping[CopyFormat, Sequence[ModelCopy]], load: PlannedLoad, available: Mapping[str, int]
) -> Iterator[str]:
    """Yields sentences: the devices that would keep the limits at this rate, and the rate that available ones bear."""
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
