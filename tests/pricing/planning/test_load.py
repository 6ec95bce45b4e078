"""Waiting times against the queues whose waiting time is known exactly."""

import math

import pytest

from pricing.planning.load import ServiceTimes, waiting_s

EXPONENTIAL, CONSTANT = ServiceTimes(0.5, 1.0, 1.2), ServiceTimes(0.5, 0.0, 0.5)


def test_one_exponential_server_waits_as_m_m_1() -> None:
    mean = 0.5 * 0.6 / (1 - 0.6)
    assert waiting_s(EXPONENTIAL, 1.2, 1, 1 - math.exp(-1)) == pytest.approx(mean)


def test_constant_times_wait_half_as_long_as_exponential_times() -> None:
    assert waiting_s(CONSTANT, 1.2, 1, 0.9) == pytest.approx(waiting_s(EXPONENTIAL, 1.2, 1, 0.9) / 2)


def test_more_workers_at_the_same_load_wait_less_and_a_full_one_for_ever() -> None:
    assert waiting_s(EXPONENTIAL, 4.8, 4, 0.9) < waiting_s(EXPONENTIAL, 1.2, 1, 0.9) / 3
    assert waiting_s(EXPONENTIAL, 2.0, 1, 0.9) == math.inf


def test_the_spread_of_service_times() -> None:
    times = ServiceTimes.of([1.0] * 9 + [11.0], 0.9)
    assert (times.mean, times.high) == (2.0, 1.0) and times.variation == pytest.approx(9 / 4)
