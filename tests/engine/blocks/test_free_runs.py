"""Free runs against a plain set: what is taken was free, neighbours stay together."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks.free_runs import FreeRuns


class FreeRunsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runs = FreeRuns(1, 40)
        self.free = set(range(1, 41))

    @precondition(lambda self: self.free)
    @rule(data=st.data(), after=st.none() | st.integers(0, 41))
    def take(self, data: st.DataObject, after: int | None) -> None:
        count = data.draw(st.integers(0, len(self.free)))
        got = self.runs.take(count, after)
        assert len(got) == len(set(got)) == count
        assert set(got) <= self.free
        if after is not None and after + 1 in self.free and after not in self.free and count:
            assert got[0] == after + 1
        self.free -= set(got)

    @precondition(lambda self: len(self.free) < 40)
    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from([block for block in range(1, 41) if block not in self.free]))
        longest = next(count for count in range(1, 41) if first + count in self.free or first + count == 41)
        count = data.draw(st.integers(1, longest))
        self.runs.put(first, count)
        self.free |= set(range(first, first + count))

    @invariant()
    def runs_are_the_maximal_runs_of_the_set(self) -> None:
        assert self.runs.count == len(self.free)
        expected: list[tuple[int, int]] = []
        for block in sorted(self.free):
            if expected and sum(expected[-1]) == block:
                expected[-1] = (expected[-1][0], expected[-1][1] + 1)
            else:
                expected.append((block, 1))
        assert list(self.runs.runs()) == expected


TestFreeRuns = FreeRunsMachine.TestCase
TestFreeRuns.settings = settings(max_examples=100, stateful_step_count=30)
