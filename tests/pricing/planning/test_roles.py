"""Estimates of roles: Little's law, what binds, and limits that memory or products set."""

import math

import pytest

from pricing.planning.load import waiting_s
from pricing.planning.roles import both, decode, prefill
from tests.pricing.planning.figures import copy, load


def test_a_batch_keeps_littles_law() -> None:
    demand = load(4.0)
    found = decode(copy(4), 1, demand)
    assert found.batch / copy(4).step_s(found.batch, demand.mean_context) == pytest.approx(4.0 * 200, rel=0.01)
    assert found.tpot_s > copy(4).step_s(found.batch, demand.mean_context) and found.binds == "reading weights"


def test_ttft_of_a_prefill_worker_is_its_wait_and_its_prompt() -> None:
    times = copy(4).prompt_times(load(4.0))
    found = prefill(copy(4), 1, load(4.0))
    assert found.ttft_s == pytest.approx(times.high + waiting_s(times, 4.0, 1, 0.9)) and found.binds == "products"
    assert prefill(copy(4), 1, load(40.0)).ttft_s == math.inf


def test_memory_binds_where_two_gpus_hold_little_kv() -> None:
    full = decode(copy(2), 1, load(4.0))
    assert (full.tpot_s, full.binds) == (math.inf, "memory for KV")


def test_prompts_slow_the_decodes_beside_them() -> None:
    demand = load(4.0)
    assert both(copy(4), 1, demand).tpot_s > 1.5 * decode(copy(4), 1, demand).tpot_s
    assert both(copy(4), 1, load(40.0)).ttft_s == math.inf
