"""Chunks of prompts beside decodes are so long that a step keeps its target, whatever the machine does meanwhile."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from engine.schedule.chunking import MIN_PROMPT_TOKENS, Chunking

MAX_TOKENS = 4096
TARGET_S = 0.05
STEPS_TO_LEARN = 50  # JUMP ** (FRESH * 30) is 30,000: from the strangest profile to the truth, and then 20 to be exact


class Machine:
    """Decodes take `decodes` seconds, a token of a prompt `token`: the steps that a budget leads to."""

    def __init__(self, decodes: float, token: float) -> None:
        self.decodes, self.token = decodes, token

    def mixed(self, chunking: Chunking) -> float:
        tokens = chunking.budget(MAX_TOKENS)
        seconds = self.decodes + tokens * self.token
        chunking.learn(tokens, 1, [seconds])
        return seconds

    def settle(self, chunking: Chunking) -> float:
        """Decode steps and mixed ones in turn; the seconds of the last mixed one."""
        for _ in range(STEPS_TO_LEARN):
            chunking.learn(0, 1, [self.decodes])
            seconds = self.mixed(chunking)
        return seconds


MACHINES = st.builds(Machine, st.floats(1e-4, 0.045), st.floats(1e-6, 3e-4))


@given(MACHINES, MACHINES, st.floats(1, 1e6))
def test_steps_come_to_the_target_from_wherever_they_were(before: Machine, after: Machine, rate: float) -> None:
    """Another machine is what a busy neighbour makes of this one, or longer texts."""
    chunking = Chunking(TARGET_S, rate)
    for machine in (before, after):
        seconds = machine.settle(chunking)
        full = machine.decodes + MAX_TOKENS * machine.token
        least = machine.decodes + MIN_PROMPT_TOKENS * machine.token
        assert seconds <= max(least, TARGET_S * 1.1)
        assert seconds >= min(full, TARGET_S * 0.9 - machine.token)


@given(MACHINES, st.floats(2, 20))
def test_a_slower_machine_is_noticed_without_a_step_of_decodes_alone(machine: Machine, times: float) -> None:
    chunking = Chunking(TARGET_S)
    machine.settle(chunking)
    machine.decodes, machine.token = machine.decodes * times, machine.token * times
    for _ in range(STEPS_TO_LEARN):
        last = machine.mixed(chunking)
    least = machine.decodes + MIN_PROMPT_TOKENS * machine.token
    assert last <= max(least, TARGET_S) * 1.1


@given(
    st.lists(st.tuples(st.integers(0, MAX_TOKENS), st.integers(0, 256), st.floats(-1, 10)), max_size=40),
    st.integers(0, MAX_TOKENS),
)
def test_prompts_get_on_whatever_was_measured(steps: list[tuple[int, int, float]], most: int) -> None:
    """Clocks that are set back, steps that stood still, a decode step beyond the target."""
    chunking = Chunking(TARGET_S, 1000.0)
    for tokens, decodes, seconds in steps:
        chunking.learn(tokens, decodes, [seconds])
        assert min(most, MIN_PROMPT_TOKENS) <= chunking.budget(most) <= most


def test_before_the_first_step_the_profile_is_believed() -> None:
    assert Chunking(TARGET_S, 1000.0).budget(MAX_TOKENS) == 50
    assert Chunking(TARGET_S).budget(MAX_TOKENS) == MAX_TOKENS  # nothing is known


def test_without_a_target_there_is_room_for_all() -> None:
    chunking = Chunking(inf, 10.0)
    chunking.learn(100, 1, [9.0])
    assert chunking.budget(MAX_TOKENS) == MAX_TOKENS
