"""A window of ticks: no stretch of a minute has more than the limit, and what is said about waiting is true."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.keys.caller import RateLimits
from gateway.keys.remaining import Remaining, duration
from gateway.keys.window import WINDOW_S, RateWindow
from infra.redis.rates import TICK_S, TICKS_PER_MINUTE, RateUsage, tick_of


@pytest.mark.parametrize(
    ("counts", "now", "used"),
    [
        ({}, 1000.0, 0),
        ({2000: 3}, 1000.0, 3),
        ({2000: 3}, 1060.4, 3),
        ({2000: 3}, 1060.5, 0),
        ({2000: 3, 2001: 4}, 1060.5, 4),
        ({2000: 3, 2001: -1}, 1001.0, 2),
        ({2000: -3}, 1001.0, 0),
    ],
)
def test_a_tick_counts_for_a_minute_behind_its_end(counts: dict[int, int], now: float, used: int) -> None:
    assert RateWindow(counts, now).used == used


@pytest.mark.parametrize(("fits", "wait"), [(9, 0.0), (6, 0.0), (5, 58.5), (3, 58.5), (2, 59.5), (0, 60.5)])
def test_the_wait_is_until_so_many_have_left(fits: int, wait: float) -> None:
    window = RateWindow({2000: 3, 2002: 1, 2004: 2}, 1002.0)
    assert window.wait(fits) == wait and window.empty() == 60.5


@settings(max_examples=60)
@given(st.lists(st.floats(0, 200), min_size=1, max_size=300), st.integers(1, 20))
def test_no_minute_has_more_than_the_limit_and_little_less_where_many_ask(times: list[float], limit: int) -> None:
    counts: dict[int, int] = {}
    taken: list[float] = []
    for now in sorted(times):
        if RateWindow(counts, now).used < limit:
            counts[tick_of(now)] = counts.get(tick_of(now), 0) + 1
            taken.append(now)
        else:
            later = now + RateWindow(counts, now).wait(limit - 1)
            assert later > now and RateWindow(counts, later).used < limit
            recent = [one for one in taken if one > now - WINDOW_S - TICK_S]
            assert len(recent) >= limit, "it was refused although it would have fitted"
    for first in taken:
        assert sum(first <= one < first + WINDOW_S for one in taken) <= limit


def test_a_limit_is_met_to_one_percent_by_those_who_always_ask() -> None:
    counts: dict[int, int] = {}
    for step in range(40 * 60 * 20):  # twenty minutes, forty times a second, beginning in the middle of a tick
        now = 7.3 + step / 40
        if RateWindow(counts, now).used < 100:
            counts[tick_of(now)] = counts.get(tick_of(now), 0) + 1
    assert 0.99 <= sum(counts.values()) / 2000 <= 1.0 + 100 / 2000


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0174, "17ms"), (1, "1s"), (8.64, "8.64s"), (60, "1m0s"), (60.5, "1m0.5s")]
)
def test_a_time_is_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_headers_and_refusals_name_what_there_is() -> None:
    limits = RateLimits(requests_per_minute=5, tokens_per_minute=100, concurrency=2)
    fine = Remaining.of(limits, RateUsage({2000: 3}, {2000: 40, 2002: 30}, 2), 1002.0)
    assert fine.refusal(30) is None
    assert fine.headers() == {
        "x-ratelimit-limit-requests": "5",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "58.5s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "30",
        "x-ratelimit-reset-tokens": "59.5s",
    }
    cases = [
        (RateUsage({2000: 6}, {2000: 40}, 2), 58.5, "may send 5 requests per minute, and has sent them; the next one"),
        (RateUsage({2000: 3}, {2000: 90, 2002: 30}, 2), 58.5, "may use 100 tokens per minute and has used 90; 30 more"),
        (RateUsage({2000: 3}, {2000: 90}, 3), 1.0, "may have 2 requests in progress"),
    ]
    for counted, wait, words in cases:
        error = Remaining.of(limits, counted, 1002.0).refusal(30)
        assert error is not None and error.status == 429 and words in error.message
        assert error.headers()["retry-after-ms"] == f"{1000 * wait:.0f}"
        assert error.headers()["retry-after"] == f"{math.ceil(wait)}"
        assert "x-ratelimit-limit-requests" in error.headers()
    assert TICKS_PER_MINUTE * TICK_S == WINDOW_S == 60
