"""A trial finds the count of guesses that pays, follows when that changes, and loses little where none does."""

import random
from collections.abc import Callable, Sequence

import pytest

from engine.speculation.control.limit_trials import TRIAL_BUDGET, LimitTrials

DRAFT_COUNTS = (0, 1, 2, 4)
Step = Callable[[int], tuple[float, float]]
"""By the count of guesses: seconds of a step, relative to one without, and the tokens of a sequence."""


def steps(costs: Sequence[float], chance: float, seed: int = 1, noise: float = 0.1, still: float = 0.02) -> Step:
    """Steps in which a count costs so much, and each guess comes true with this chance if those before it have.

    They take as long as a machine with neighbours lets them: some a tenth more or less, and some five times.
    """
    draw = random.Random(seed)

    def step(count: int) -> tuple[float, float]:
        right = next((place for place in range(count) if draw.random() >= chance), count)
        slow = 5.0 if draw.random() < still else 1.0
        return costs[DRAFT_COUNTS.index(count)] * draw.uniform(1 - noise, 1 + noise) * slow, 1.0 + right

    return step


class Told:
    """What a caller expects of a count: the tokens that its steps gave, and once all of them, where none is known."""

    def __init__(self) -> None:
        self.given = [count + 1.0 for count in DRAFT_COUNTS]
        self.steps = [1.0 for _ in DRAFT_COUNTS]

    def tokens(self) -> list[float]:
        return [given / steps for given, steps in zip(self.given, self.steps, strict=True)]

    def learn(self, arm: int, gave: float) -> None:
        self.given[arm] = 0.99 * self.given[arm] + gave
        self.steps[arm] = 0.99 * self.steps[arm] + 1


def run(
    trial: LimitTrials, step: Step, number: int, batch: int = 1, told: Told | None = None
) -> tuple[float, float, list[int]]:
    """Runs steps; returns seconds and tokens of them all, and their counts."""
    seconds, tokens = 0.0, 0.0
    told = told or Told()
    counts: list[int] = []
    for _ in range(number):
        tried = trial.begin(batch, told.tokens())
        count = trial.limits[tried.arm]
        took, gave = step(count)
        trial.learn(tried, took)
        told.learn(tried.arm, gave)
        seconds, tokens, counts = seconds + took, tokens + gave, [*counts, count]
    return seconds, tokens, counts


def usual(counts: list[int]) -> int:
    """The count that most of the last half of the steps had."""
    late = counts[len(counts) // 2 :]
    return max(DRAFT_COUNTS, key=late.count)


DEAR_STEPS = (1.0, 1.4, 1.8, 2.6)
FLAT_STEPS = (1.0, 1.2, 1.25, 1.3)
"""Whoever proposes takes a fifth of a step, a row little."""


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_the_count_that_pays_most(seed: int) -> None:
    assert usual(run(LimitTrials(DRAFT_COUNTS), steps(FLAT_STEPS, 0.8, seed), 2000)[2]) == 4
    assert usual(run(LimitTrials(DRAFT_COUNTS), steps((1.0, 1.1, 1.25, 2.4), 0.7, seed), 2000)[2]) in (1, 2)
    assert usual(run(LimitTrials(DRAFT_COUNTS), steps(DEAR_STEPS, 0.3, seed), 2000)[2]) == 0


@pytest.mark.parametrize("costs", [DEAR_STEPS, (1.0, 1.05, 1.1, 1.2), (1.0, 2.0, 3.0, 8.0)])
def test_where_no_guess_pays_little_is_lost(costs: tuple[float, ...]) -> None:
    trial, number = LimitTrials(DRAFT_COUNTS), 8000
    for most in (1.03, 1 + 2 * TRIAL_BUDGET):  # what is found out at the beginning is the dearer part
        _, tokens, counts = run(trial, steps(costs, 0.0), number)
        assert tokens == number
        assert sum(costs[DRAFT_COUNTS.index(count)] for count in counts) / number < most


def test_where_guesses_pay_little_is_lost() -> None:
    trial, number = LimitTrials(DRAFT_COUNTS), 8000
    seconds, tokens, _ = run(trial, steps(FLAT_STEPS, 0.8), number)
    a_token = FLAT_STEPS[3] * 1.08 / (1 + 0.8 + 0.64 + 0.512 + 0.4096)  # with the steps that stand still
    assert seconds / tokens < 1.05 * a_token


def test_it_follows_when_texts_change() -> None:
    trial = LimitTrials(DRAFT_COUNTS)
    assert usual(run(trial, steps(FLAT_STEPS, 0.0), 3000)[2]) == 0
    assert usual(run(trial, steps(FLAT_STEPS, 0.85), 3000)[2]) == 4
    assert usual(run(trial, steps(FLAT_STEPS, 0.0), 1000)[2]) == 0


def test_batches_of_other_sizes_are_tried_apart() -> None:
    trial = LimitTrials(DRAFT_COUNTS)
    for _ in range(20):
        alone = run(trial, steps(FLAT_STEPS, 0.8), 100)[2]
        many = run(trial, steps((1.0, 2.0, 3.0, 5.0), 0.8), 100, batch=64)[2]
    assert usual(alone) == 4 and usual(many) == 0
    assert trial.begin(33, FLAT_STEPS).size == trial.begin(64, FLAT_STEPS).size != trial.begin(65, FLAT_STEPS).size


def test_a_step_that_still_had_the_guesses_of_another_count_tells_nothing() -> None:
    trial, step, told, before = LimitTrials(DRAFT_COUNTS), steps(FLAT_STEPS, 0.8), Told(), 0
    counts = []
    for _ in range(3000):
        tried = trial.begin(1, told.tokens())
        count = trial.limits[tried.arm]
        took, gave = step(count)
        trial.learn(tried, took if count == before else 100.0)
        told.learn(tried.arm, gave)
        counts.append(count)
        before = count
    assert usual(counts) == 4
    assert trial.begin(64, told.tokens()).settled == (before == 0)


def test_a_count_that_was_never_tried_lies_on_the_line_of_its_neighbours() -> None:
    """Without a guess and with four: two would be found out for nothing, if they gave no more than the line says."""
    trial, counts = LimitTrials(DRAFT_COUNTS), []
    for _ in range(100):
        tried = trial.begin(1, [1.0, 1.4, 1.7, 2.6])
        trial.learn(tried, (1.0, 9.0, 9.0, 1.6)[tried.arm])
        counts.append(trial.limits[tried.arm])
    assert set(counts) == {0, 4}


def test_it_says_what_a_guess_adds() -> None:
    trial = LimitTrials(DRAFT_COUNTS)
    step = steps(FLAT_STEPS, 0.8, noise=0.0, still=0.0)
    run(trial, step, 2000)
    while trial.limits[(tried := trial.begin(1, Told().tokens())).arm] != 4:
        run(trial, step, 1)
    assert trial.draft_seconds(tried) == pytest.approx((FLAT_STEPS[3] - 1) / 4)
