"""Draws a day of requests: few at night, many in the afternoon, bursts, and a ramp in the evening.

Lengths are log-normal, with the medians that Patel et al., "Splitwise", ISCA 2024, report of conversations in Azure's
public trace of 2023: 1,020 tokens of a prompt, 129 of an answer. The spreads, the day's shape and the bursts are
ours; that arrivals are burstier than Poisson's over minutes is what Wang et al., "BurstGPT", 2024, found.
"""

import random
from collections.abc import Iterator
from math import cos, exp, log, pi
from typing import NamedTuple

DAY_S = 86400.0  # s
NIGHT_RATE_SHARE = 0.2  # of the peak's rate, at its least
NIGHT_AT_SHARE = 4 / 24  # of the day
BURSTS_A_DAY = 8
BURST_S = 300.0
BURST_RATE_FACTOR = 1.8  # times the rate
RAMP_SPAN = (19 / 24, 20 / 24)  # of the day, in which the rate grows evenly …
RAMP_RATE_FACTOR = 1.6  # … to this multiple
MEDIAN_PROMPT_TOKENS, PROMPT_SPREAD, MAX_PROMPT_TOKENS = 1020.0, 0.6, 16384  # tokens; the spread is of the logarithm
MEDIAN_ANSWER_TOKENS, ANSWER_SPREAD, MAX_ANSWER_TOKENS = 129.0, 1.0, 4096


class Arrival(NamedTuple):
    """A request."""

    at: float  # s
    prompt: int  # tokens
    answer: int  # tokens


class Day:
    """The shape of a day that lasts `seconds`."""

    def __init__(self, peak: float, seed: int, seconds: float = DAY_S) -> None:
        self.seconds = seconds
        self._peak = peak
        self._chance = random.Random(seed)
        self._length = BURST_S * seconds / DAY_S
        self._bursts = [self._chance.uniform(0, seconds) for _ in range(BURSTS_A_DAY)]

    def rate(self, at: float) -> float:
        share = at / self.seconds
        rate = self._peak * (
            NIGHT_RATE_SHARE + (1 - NIGHT_RATE_SHARE) * (0.5 - 0.5 * cos(2 * pi * (share - NIGHT_AT_SHARE)))
        )
        begin, end = RAMP_SPAN
        if begin <= share < end:
            rate *= 1 + (RAMP_RATE_FACTOR - 1) * (share - begin) / (end - begin)
        return rate * (BURST_RATE_FACTOR if any(start <= at < start + self._length for start in self._bursts) else 1.0)

    def arrivals(self) -> Iterator[Arrival]:
        chance, most, at = self._chance, self._peak * BURST_RATE_FACTOR * RAMP_RATE_FACTOR, 0.0
        while (at := at + chance.expovariate(most)) < self.seconds:
            if chance.random() * most < self.rate(at):
                yield Arrival(
                    at,
                    _length(chance, MEDIAN_PROMPT_TOKENS, PROMPT_SPREAD, MAX_PROMPT_TOKENS),
                    _length(chance, MEDIAN_ANSWER_TOKENS, ANSWER_SPREAD, MAX_ANSWER_TOKENS),
                )


def _length(chance: random.Random, median: float, spread: float, longest: int) -> int:
    return max(2, min(longest, round(exp(log(median) + spread * chance.gauss(0, 1)))))
