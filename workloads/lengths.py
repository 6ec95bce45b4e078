"""Lengths of prompts and of answers, in tokens: fixed, uniform or log-normal."""

import math
import random
import re

from msgspec import Struct

from contracts.errors import ConfigError

MAX_LENGTH_TOKENS = 1 << 20
EXPECTED_FORMAT = (
    "expected a number of tokens such as 256, uniform:64-1024 (both included), or lognormal:300,0.8 (median and the "
    f"standard deviation of the logarithm), from 1 to {MAX_LENGTH_TOKENS} tokens"
)
_PATTERN = re.compile(
    r"(?P<fixed>\d{1,7})|uniform:(?P<low>\d{1,7})-(?P<high>\d{1,7})|lognormal:(?P<median>\d{1,7}),(?P<sigma>\d(?:\.\d{1,4})?)"
)


class Lengths(Struct, frozen=True):
    """A distribution of lengths: uniform from `low` to `high`; with a `sigma`, log-normal with median `low`."""

    low: int
    high: int
    sigma: float = 0.0

    def draw(self, chance: random.Random) -> int:
        if self.sigma:
            drawn = chance.lognormvariate(math.log(self.low), self.sigma)
            return min(max(1, round(drawn)), MAX_LENGTH_TOKENS)
        return chance.randint(self.low, self.high)


def parse_lengths(text: str, option: str) -> Lengths:
    """Parses a length or a distribution. Raises `ConfigError` that names `option`.

    Example: parse_lengths("uniform:64-1024", "--prompt-tokens") == Lengths(64, 1024)
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ConfigError(option, text, EXPECTED_FORMAT)
    if match["fixed"]:
        found = Lengths(int(match["fixed"]), int(match["fixed"]))
    elif match["low"]:
        found = Lengths(int(match["low"]), int(match["high"]))
    else:
        found = Lengths(int(match["median"]), int(match["median"]), float(match["sigma"]))
    if not 1 <= found.low <= found.high <= MAX_LENGTH_TOKENS:
        raise ConfigError(option, text, EXPECTED_FORMAT)
    return found
