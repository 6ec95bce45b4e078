"""Runs of load generators, found by their marks."""

from dashboard.reading.load_runs import MAX_UNENDED_S, LoadRun, load_runs
from infra.redis.records import RunMark

NOW_S = 10_000.0


def mark(run: str, ago: float, ended: bool = False) -> RunMark:
    return RunMark(run, f"bench {run}", NOW_S - ago, ended)


def test_runs_are_cut_at_the_window_and_old_runs_left_out() -> None:
    marks = [mark("a", 900), mark("a", 700, ended=True), mark("b", 400), mark("b", 100, ended=True), mark("c", 50)]
    assert load_runs(marks, NOW_S, 300.0) == [LoadRun("bench b", -300.0, -100.0), LoadRun("bench c", -50.0, 0.0)]


def test_runs_overlap_and_an_end_alone_is_no_run() -> None:
    marks = [mark("z", 200, ended=True), mark("a", 90), mark("b", 80), mark("a", 70, ended=True)]
    assert load_runs(marks, NOW_S, 300.0) == [LoadRun("bench a", -90.0, -70.0), LoadRun("bench b", -80.0, 0.0)]


def test_a_run_that_was_never_ended_does_not_last_for_ever() -> None:
    ago = MAX_UNENDED_S + 60.0
    assert load_runs([mark("a", ago)], NOW_S, 2 * ago) == [LoadRun("bench a", -ago, -60.0)]
    assert load_runs([mark("a", ago)], NOW_S, 60.0) == []
