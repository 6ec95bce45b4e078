"""Holds what a deployment's growing and shrinking keeps to: bounds, objectives, waits. Reads `--autoscale`."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from contracts.errors import ConfigError
from contracts.slo import SLO

ROLES = ("prefill", "decode")
MAX_WORKERS_PER_ROLE = 1024
"""Workers of a role, at most."""
_BOUNDS_REGEX = re.compile(r"(prefill|decode)=(\d{1,4}):(\d{1,4})")
_WAIT_REGEX = re.compile(r"(up|down)=(\d{1,6}(?:\.\d{1,3})?)s")
_EXPECTED_TEXT = f"expected prefill=1:4,decode=1:8, each from 1 to {MAX_WORKERS_PER_ROLE} and the least first, and perhaps up=30s,down=300s"


class Bounds(NamedTuple):
    """Says how many workers a role may have."""

    least: int
    most: int


class Rules(Struct, frozen=True):
    """Says what the policy keeps to. A role without bounds is left as it is."""

    bounds: Mapping[str, Bounds]
    slo: SLO
    up: float = 30.0  # s after a change before a worker is added
    down: float = 300.0  # s after a change, and of a load for fewer, before one is removed


def parse_rules(text: str, slo: SLO, key: str = "--autoscale") -> Rules:
    """Reads `prefill=1:4,decode=1:8`, or a part, and perhaps `up=30s,down=300s`. Raises `ConfigError` that names `key`.

    Example: parse_rules("decode=1:8", slo).bounds == {"decode": Bounds(1, 8)}
    """
    bounds: dict[str, Bounds] = {}
    waits: dict[str, float] = {}
    for part in text.replace(" ", "").split(","):
        if (found := _BOUNDS_REGEX.fullmatch(part)) and found[1] not in bounds:
            least, most = int(found[2]), int(found[3])
            if not 1 <= least <= most <= MAX_WORKERS_PER_ROLE:
                raise ConfigError(key, text, _EXPECTED_TEXT)
            bounds[found[1]] = Bounds(least, most)
        elif (found := _WAIT_REGEX.fullmatch(part)) and found[1] not in waits:
            waits[found[1]] = float(found[2])
        else:
            raise ConfigError(key, text, _EXPECTED_TEXT)
    rules = Rules(bounds, slo, **waits)
    if not bounds or rules.up <= 0 or rules.down < rules.up:
        raise ConfigError(key, text, f"{_EXPECTED_TEXT}, where down is no shorter than up")
    return rules
