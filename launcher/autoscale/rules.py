"""Rules of autoscaling: bounds on workers, objectives, cool-downs. Parses `--autoscale`."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from contracts.errors import ConfigError
from contracts.slo import SLO

ROLES = ("prefill", "decode")
MAX_WORKERS_PER_ROLE = 1024
"""Largest upper bound of a role's workers."""
_BOUNDS_REGEX = re.compile(r"(prefill|decode)=(\d{1,4}):(\d{1,4})")
_WAIT_REGEX = re.compile(r"(up|down)=(\d{1,6}(?:\.\d{1,3})?)s")
_EXPECTED_TEXT = (
    f"expected prefill=1:4,decode=1:8, each from 1 to {MAX_WORKERS_PER_ROLE} and the least first, "
    "and perhaps up=30s,down=300s"
)


class Bounds(NamedTuple):
    """Least and largest number of workers of a role."""

    least: int
    most: int


class Rules(Struct, frozen=True):
    """Rules of one deployment. A role without bounds keeps its workers."""

    bounds: Mapping[str, Bounds]
    slo: SLO
    up: float = 30.0  # least s between a change and the addition of a worker
    down: float = 300.0  # least s between a change and a removal, and of a load that fewer workers could serve


def parse_rules(text: str, slo: SLO) -> Rules:
    """Parses `prefill=1:4,decode=1:8`, or one of both, and optional `up=30s,down=300s`. Raises `ConfigError`.

    Example: parse_rules("decode=1:8", slo).bounds == {"decode": Bounds(1, 8)}
    """
    bounds: dict[str, Bounds] = {}
    waits: dict[str, float] = {}
    for part in text.replace(" ", "").split(","):
        if (found := _BOUNDS_REGEX.fullmatch(part)) and found[1] not in bounds:
            least, most = int(found[2]), int(found[3])
            if not 1 <= least <= most <= MAX_WORKERS_PER_ROLE:
                raise ConfigError("--autoscale", text, _EXPECTED_TEXT)
            bounds[found[1]] = Bounds(least, most)
        elif (found := _WAIT_REGEX.fullmatch(part)) and found[1] not in waits:
            waits[found[1]] = float(found[2])
        else:
            raise ConfigError("--autoscale", text, _EXPECTED_TEXT)
    rules = Rules(bounds, slo, **waits)
    if not bounds or rules.up <= 0 or rules.down < rules.up:
        raise ConfigError("--autoscale", text, f"{_EXPECTED_TEXT}, where down is no shorter than up")
    return rules
