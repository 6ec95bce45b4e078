"""Records in, figures out."""

from typing import Any

import pytest
from msgspec import structs

from dashboard.reading.figures import (
    Outcome,
    Spread,
    glance,
    handed_off,
    handoff_rate,
    judge,
    progress,
    rates,
    sharing,
    stages,
    timeline,
)
from infra.redis.records import FinishedRecord, StatsSample
from infra.redis.worker_load import KVCounts, WorkerLoad
from tests.dashboard.samples import finished, gateway, in_progress, refused

NOW_S = 1000.0


def at(ended_at: float, number: int = 1, **changes: Any) -> FinishedRecord:
    return finished(number, ended_at=ended_at, **changes)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Outcome.GOOD),
        ({"ttft_ms": 9e9, "tpot_ms": 9e9}, Outcome.GOOD),  # its own objective was a patient one
        ({"good": False}, Outcome.LATE),
        ({"outcome": "failed", "good": False}, Outcome.FAILED),
        ({"outcome": "refused", "good": False}, Outcome.REFUSED),
        ({"outcome": "cancelled", "good": False}, Outcome.CANCELLED),
    ],
)
def test_the_verdict_is_the_gateways(changes: dict[str, Any], verdict: Outcome) -> None:
    assert judge(finished(**changes)) is verdict


def test_glance_counts_only_the_window_and_divides_by_the_time_since_its_first_request() -> None:
    records = [at(NOW_S - 100), at(NOW_S - 19.75), at(NOW_S - 1), at(NOW_S, good=False), at(NOW_S, outcome="failed")]
    records += [refused(ended_at=NOW_S), refused(ended_at=NOW_S)]
    seen = glance(records, NOW_S, window=60.0)
    assert list(seen.counts.values()) == [2, 1, 1, 2, 0] and list(seen.counts) == list(Outcome)
    assert seen.goodput == pytest.approx(2 / 20.0)  # the first began 250 ms before its end
    assert (seen.good_share(), seen.judged()) == (0.5, 4), "of those that were accepted"


def test_glance_of_one_request_is_no_burst() -> None:
    assert glance([at(NOW_S)], NOW_S, window=60.0).goodput == pytest.approx(1 / 5.0)


def test_cancelled_requests_are_no_verdict_on_the_service() -> None:
    assert glance([at(NOW_S), at(NOW_S, outcome="cancelled")], NOW_S, 60.0).good_share() == 1.0


def test_percentiles_are_by_nearest_rank_and_leave_out_what_has_none() -> None:
    records = [at(NOW_S, ttft_ms=float(ms), tpot_ms=ms / 10) for ms in range(1, 101)]
    records += [at(NOW_S, output_tokens=1, ttft_ms=1.0, tpot_ms=999.0), at(NOW_S, output_tokens=0, ttft_ms=0.0)]
    seen = glance(records, NOW_S, 60.0)
    assert seen.ttft == Spread(50.0, 95.0, 99.0)  # of 101: the single-token request has a TTFT, the empty one has not
    assert seen.tpot == Spread(5.0, 9.5, 9.9)


def test_timeline_covers_the_window_once_and_its_edges_lie_still() -> None:
    records = [at(NOW_S - 9.9, 1), at(NOW_S - 5.0, 2), at(NOW_S - 0.1, 3), at(NOW_S + 0.4, 4), at(NOW_S + 3.0, 5)]
    early = timeline(records, NOW_S + 0.5, window=20.0, intervals=4)
    assert [bucket.age for bucket in early] == [-15.0, -10.0, -5.0, 0.0]
    assert [bucket.counts[Outcome.GOOD] for bucket in early] == [0, 1, 2, 2]
    late = timeline(records, NOW_S + 4.9, window=20.0, intervals=4)
    assert early == late  # the same interval is running
    assert [b.counts[Outcome.GOOD] for b in timeline(records, NOW_S + 5.0, 20.0, 4)] == [1, 2, 2, 0]


def test_progress() -> None:
    states = ("queued", "prefill", "decode", "decode")
    gateways = [gateway([in_progress(state) for state in states]), structs.replace(gateway(), waiting=3)]
    assert progress(gateways) == (1, 1, 2, 3)


def test_rates_add_the_workers_and_ignore_what_is_old_or_alone() -> None:
    def sampled(at: float, prompt: int, output: int, moved: int) -> StatsSample:
        return StatsSample(
            at, "e", "decode", WorkerLoad(prompt_tokens=prompt, output_tokens=output, handoff_bytes=moved)
        )

    first = [sampled(NOW_S - 60, 0, 0, 0), sampled(NOW_S - 8, 100, 1000, 0), sampled(NOW_S - 4, 140, 1400, 4096)]
    second = [sampled(NOW_S - 5, 0, 0, 0), sampled(NOW_S, 0, 50, 0)]
    assert rates([first, second, [sampled(NOW_S, 9, 9, 9)], []], NOW_S) == (10.0, 110.0, 1024.0)


def test_cached_tokens_are_those_of_the_window_that_were_looked_up() -> None:
    records = [
        at(NOW_S - 100, cached_tokens=20),
        at(NOW_S - 1),
        at(NOW_S, prompt_tokens=60, cached_tokens=0, outcome="cancelled"),
        at(NOW_S, prompt_tokens=999, cached_tokens=0, output_tokens=0, outcome="failed"),
    ]
    seen = glance(records, NOW_S, window=60.0)
    assert (seen.prompt_tokens, seen.cached_tokens, seen.cached_share()) == (80, 16, 0.2)
    assert glance([], NOW_S, 60.0).cached_share() is None


def test_sharing_is_the_growth_over_the_last_minute() -> None:
    def sampled(at: float, queried: int, found: int, preemptions: int) -> StatsSample:
        counts = KVCounts(queried_tokens=queried, found_tokens=found)
        return StatsSample(at, "e", "decode", WorkerLoad(preemptions=preemptions, kv=counts))

    before, first, last = sampled(NOW_S - 61, 0, 0, 0), sampled(NOW_S - 60, 100, 90, 2), sampled(NOW_S, 400, 130, 7)
    assert sharing([before, first, sampled(NOW_S - 9, 100, 90, 3), last], NOW_S) == (300, 40, 5)
    assert sharing([before, first], NOW_S) is None and sharing([], NOW_S) is None


def test_stages_fill_the_whole_time_and_a_handoff_counts_from_the_end_of_its_prefill() -> None:
    parts = stages(finished())
    assert [(part.name, part.ms) for part in parts] == [
        ("waiting", 10),
        ("prefill", 40),
        ("handoff", 46),
        ("decode", 200),
    ]
    assert [part.share for part in parts] == pytest.approx([10 / 250, 40 / 250, 6 / 250, 194 / 250])


def test_time_before_the_first_token_that_nobody_measured_is_waiting_and_no_decode() -> None:
    parts = {part.name: part.share for part in stages(finished(ttft_ms=1310.0, e2e_ms=1440.0, handoff_ms=0.0))}
    assert parts["waiting"] == pytest.approx(1270 / 1440) and parts["decode"] == pytest.approx(130 / 1440)


@pytest.mark.parametrize("outcome", ["refused", "failed", "cancelled"])
def test_a_request_without_a_token_has_no_decode(outcome: str) -> None:
    parts = {part.name: (part.ms, part.share) for part in stages(refused(outcome=outcome))}
    assert parts == {"waiting": (480, 1), "prefill": (0, 0), "handoff": (0, 0), "decode": (0, 0)}


def test_stages_never_exceed_the_whole_time() -> None:
    for record in (finished(e2e_ms=45.0), finished(e2e_ms=0.0), finished(handoff_ms=9e9), finished(prefill_ms=-1.0)):
        parts = stages(record)
        assert sum(part.share for part in parts) == pytest.approx(1.0)
        assert all(0.0 <= part.share <= 1.0 for part in parts)


def test_a_handoffs_rate_is_that_of_the_time_in_which_it_was_sent() -> None:
    assert handoff_rate(finished(handoff_bytes=3_000_000, send_ms=1.5)) == 2e9
    assert handoff_rate(finished(send_ms=0.0)) is None and handoff_rate(finished(handoff_bytes=0)) is None


def test_a_handoff_of_nothing_is_one_if_tokens_followed() -> None:
    assert handed_off(finished()) and handed_off(finished(handoff_bytes=0)) and handed_off(finished(output_tokens=1))
    assert not handed_off(finished(handoff_bytes=0, output_tokens=2, samples=2)), "all ended with their first tokens"
    assert not handed_off(finished(prefill_worker=""))
