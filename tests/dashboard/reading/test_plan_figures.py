"""Figures of the page Plan, from requests whose tokens and times are known."""

from dashboard.reading.plan_figures import ThroughputPoint, fitting_sequences, good_tokens_per_s, kv_bytes, throughput
from infra.redis.records import Memory
from tests.dashboard.samples import finished, worker

NOW_S = 1000.0


def test_a_point_for_each_interval_with_answers() -> None:
    ended = [
        finished(1, ended_at=NOW_S - 95.0, output_tokens=50, tpot_ms=20.0),
        finished(2, ended_at=NOW_S - 5.0, output_tokens=30, tpot_ms=10.0),
        finished(3, ended_at=NOW_S - 4.0, output_tokens=70, tpot_ms=30.0),
        finished(4, ended_at=NOW_S - 3.0, output_tokens=1, tpot_ms=0.0),
        finished(5, ended_at=NOW_S - 500.0),
    ]
    assert throughput(ended, NOW_S, 100.0, 10) == [ThroughputPoint(20.0, 5.0), ThroughputPoint(10.0, 10.0)]


def test_only_tokens_of_good_requests_are_paid_for() -> None:
    ended = [finished(1, ended_at=NOW_S - 5, output_tokens=200), finished(2, ended_at=NOW_S - 5, good=False)]
    assert good_tokens_per_s(ended, NOW_S, 100.0) == 2.0


def test_memory_of_a_batch() -> None:
    holder = worker(memory=Memory(token_bytes=1000, tokens=10_000))
    assert kv_bytes(holder, 4, 500) == 2_000_000 and fitting_sequences(holder, 3000) == 3
