"""What was not good, by reason and by tenant, and under other limits."""

from typing import Any

from contracts.slo import Objective
from dashboard.reading.badput import MISSED_WORDS, Badput, WhatIf, badput, tenants, what_if
from dashboard.reading.figures import Outcome
from dashboard.reading.source import Snapshot
from infra.redis.records import IntervalRecord, TenantUse
from infra.redis.registry import MAX_FINISHED
from tests.dashboard.samples import finished, refused

NOW_S = 50_000.0
WINDOW_S = 60.0
LIMITS = Objective(100.0, 10.0)


def test_each_miss_has_its_reason() -> None:
    late: dict[str, Any] = {"good": False, "objective": LIMITS, "ended_at": NOW_S}
    records = [finished(ended_at=NOW_S), *[finished(ttft_ms=500.0, **late)] * 3, *[finished(tpot_ms=20.0, **late)] * 2]
    records += [finished(ttft_ms=500.0, tpot_ms=20.0, **late), refused(9, ended_at=NOW_S)]
    records += [finished(outcome="failed", reason="deadline", good=False, ended_at=NOW_S)]
    old = finished(ttft_ms=500.0, **late | {"ended_at": NOW_S - 2 * WINDOW_S})
    found = badput(Snapshot(NOW_S, [], [], [old, *records], {}), WINDOW_S)
    assert found[:2] == [
        Badput(Outcome.LATE, MISSED_WORDS["ttft"], 3),
        Badput(Outcome.LATE, MISSED_WORDS["tpot"], 2),
    ]
    assert {(one.outcome, one.why) for one in found[2:]} == {
        (Outcome.LATE, MISSED_WORDS["both"]),
        (Outcome.REFUSED, records[-2].reason),
        (Outcome.FAILED, "deadline"),
    }


def test_sums_tell_the_same_when_the_records_have_gone() -> None:
    kept = [finished(ended_at=NOW_S, tenant="new")] * MAX_FINISHED
    one = IntervalRecord("g", NOW_S - 40, {"late": 2}, {"ttft": 2}, {"deadline": 3}, {"no_workers": 4})
    state = Snapshot(
        NOW_S, [], [], kept, {}, [one, IntervalRecord("h", NOW_S - 10, tenants={"acme": TenantUse(5, 4, 50, 9)})]
    )
    assert badput(state, WINDOW_S) == [
        Badput(Outcome.REFUSED, "no_workers", 4),
        Badput(Outcome.FAILED, "deadline", 3),
        Badput(Outcome.LATE, MISSED_WORDS["ttft"], 2),
    ]
    assert tenants(state, WINDOW_S) == {"acme": TenantUse(5, 4, 50, 9)}


def test_other_limits_judge_the_same_times() -> None:
    records = [finished(ttft_ms=ms, ended_at=NOW_S, good=False) for ms in (50.0, 150.0, 250.0)]
    records += [finished(outcome="failed", good=False, ended_at=NOW_S), refused(9, ended_at=NOW_S)]
    state = Snapshot(NOW_S, [], [], records, {})
    assert what_if(state, WINDOW_S, Objective(200.0)) == WhatIf(2, 4)
    assert what_if(state, WINDOW_S, Objective(200.0, 1.0)) == WhatIf(0, 4)


def test_tenants_are_in_the_order_of_their_tokens() -> None:
    records = [
        finished(tenant=name, output_tokens=tokens, ended_at=NOW_S) for name, tokens in (("a", 5), ("b", 900), ("a", 5))
    ]
    found = tenants(Snapshot(NOW_S, [], [], [*records, finished(ended_at=NOW_S)], {}), WINDOW_S)
    assert list(found.items()) == [("b", TenantUse(1, 1, 20, 900)), ("a", TenantUse(2, 2, 40, 10))]
