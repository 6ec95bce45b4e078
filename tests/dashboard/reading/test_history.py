"""Windows of hours, from the gateways' sums where the records of requests have gone, and load over time."""

import itertools

from msgspec import structs

from dashboard.drawing.charts import load_data
from dashboard.reading import history
from dashboard.reading.figures import Outcome
from dashboard.reading.source import Snapshot
from gateway.reports.intervals import bucket
from infra.redis.records import INTERVAL_S, IntervalRecord, Judgement, RoleUse, StatsSample
from infra.redis.registry import MAX_FINISHED
from infra.redis.worker_load import WorkerLoad
from tests.dashboard.samples import finished

NOW_S = 1_000_000.0 * INTERVAL_S
HOUR_S = 3600.0


def interval(ago: float, good: int = 0, late: int = 0, **more: object) -> IntervalRecord:
    """Sums that ended `ago` s ago; good requests took 100 ms, late ones 900 ms to the first token."""
    counts: dict[Judgement, int] = {"good": good, "late": late}
    outcomes = {judgement: count for judgement, count in counts.items() if count}
    ttft = {bucket(ms): count for ms, count in ((100.0, good), (900.0, late)) if count}
    return structs.replace(IntervalRecord("g", NOW_S - ago, outcomes, ttft=ttft), **more)


def snapshot(intervals: list[IntervalRecord], records: int = MAX_FINISHED) -> Snapshot:
    """Has so many records, all of the last minute."""
    kept = list(itertools.repeat(finished(ended_at=NOW_S - 30), records))
    return Snapshot(NOW_S, [], [], kept, {}, intervals)


def test_a_window_that_the_records_do_not_reach_is_made_of_sums() -> None:
    hours = [interval(hour * HOUR_S, good=100, late=20) for hour in (30, 20, 2, 1)]
    seen = history.glance(snapshot(hours), 24 * HOUR_S)
    assert (seen.counts[Outcome.GOOD], seen.counts[Outcome.LATE]) == (300, 60)
    assert seen.ttft is not None and 100 <= seen.ttft.p50 < 113 and 900 <= seen.ttft.p95 < 1013
    assert abs(seen.goodput - 300 / (20 * HOUR_S + INTERVAL_S)) < 1e-9
    buckets = history.timeline(snapshot(hours), 24 * HOUR_S, 24)
    assert [(one.age / HOUR_S, one.counts[Outcome.GOOD]) for one in buckets if one.ttft is not None] == [
        (-20.0, 100), (-2.0, 100), (-1.0, 100)
    ]  # fmt: skip


def test_records_are_preferred_while_none_has_gone() -> None:
    few = snapshot([interval(2 * HOUR_S, good=100)], records=10)
    assert history.reaches(few, 24 * HOUR_S) and history.glance(few, 24 * HOUR_S).counts[Outcome.GOOD] == 10
    assert history.reaches(snapshot([]), 20.0) and not history.reaches(snapshot([]), 60.0)


def test_load_is_the_mean_of_the_gateways_and_a_gap_ends_a_line() -> None:
    both = [interval(60, roles={"decode": RoleUse(1.0, waiting, used)}) for waiting, used in ((2.0, 0.4), (4.0, 0.6))]
    earlier = interval(20 * 60, roles={"decode": RoleUse(1.0, 0.0, 0.1)})
    points = history.load(snapshot([earlier, *both]), 1800.0, 60)
    assert [(point.role, point.kv_used, point.waiting) for point in points] == [
        ("decode", 0.1, 0.0),
        ("decode", 0.5, 3.0),
    ]
    assert len(set(load_data(points, 30.0)["run"])) == 2


def test_a_short_window_shows_the_workers_samples() -> None:
    def life(epoch: str, used: int) -> list[StatsSample]:
        load = WorkerLoad(blocks_used=used, blocks_total=100, waiting=used)
        return [StatsSample(NOW_S - ago, epoch, "decode", load) for ago in (100, 10)]

    state = Snapshot(NOW_S, [], [], [], {"a": life("a", 20), "b": life("b", 40)})
    points = history.load(state, 300.0, 60)
    assert [(point.age, point.kv_used, point.waiting) for point in points] == [(-102.5, 0.3, 60.0), (-12.5, 0.3, 60.0)]
