"""Interleaved rounds over systems that are plain objects."""

import pytest

from benchmarks.limits.workloads import Workload
from benchmarks.peers import rounds
from benchmarks.peers.rounds import Results, run_rounds

SMALL = [Workload(2, 5, 6), Workload(1, 9, 1)]


class Recorded:
    """Answers at once, with tokens of its own, and says that it took so long."""

    def __init__(self, name: str, seconds: float, token: int, log: list[tuple[str, list[list[int]], int]]) -> None:
        self.name, self._seconds, self._token, self._log = name, seconds, token, log

    def run(self, prompts: list[list[int]], output: int) -> tuple[float, list[list[int]]]:
        self._log.append((self.name, prompts, output))
        return self._seconds, [[self._token] * output for _ in prompts]

    def processor_seconds(self) -> float:
        return 0.0


def test_every_system_meets_the_same_prompts_in_a_turning_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "REST_LOOK_S", 0.0)  # these are at rest
    log: list[tuple[str, list[list[int]], int]] = []
    systems = [Recorded("a", 1.0, 1, log), Recorded("b", 2.0, 1, log), Recorded("c", 4.0, 2, log)]
    told: list[str] = []
    results = run_rounds(systems, SMALL, 2, 100, lambda what, percent: told.append(f"{what} {percent}%"))
    groups = [log[begin : begin + 3] for begin in range(0, len(log), 3)]
    assert len(groups) == len(told) == 3 * len(SMALL)
    assert all(len({repr(prompts) for _, prompts, _ in group}) == 1 for group in groups)
    assert len({repr(group[0][1]) for group in groups}) == len(groups)  # other prompts in each round
    assert [group[0][0] for group in groups] == ["c", "c", "a", "a", "b", "b"]
    assert [group[0][2] for group in groups] == [4, 1, 6, 1, 6, 1]  # the warm-up is short
    assert told[0] == "warming up: 2 x 5→6 0%" and told[-1] == "round 2 of 2: 1 x 9→1 83%"
    assert results.seconds["b"] == {SMALL[0]: [2.0, 2.0], SMALL[1]: [2.0, 2.0]}
    assert results.agreed == {"a": [True] * 9, "b": [True] * 9, "c": [False] * 9}


def test_the_ratio_is_of_the_same_round() -> None:
    # The machine is ten times slower in the second round, for both.
    results = Results({"ours": {SMALL[0]: [1.0, 10.0, 1.0]}, "theirs": {SMALL[0]: [2.0, 30.0, 1.5]}})
    assert results.ratio("ours", "theirs", SMALL[0]) == 2.0
    assert results.rate("ours", SMALL[0]) == 12.0 and results.best(["ours", "theirs"], SMALL[0]) == "ours"
