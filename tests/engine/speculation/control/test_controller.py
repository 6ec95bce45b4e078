"""The controller counts the guesses that pay: by their chances, and by what rows cost; none on adverse texts."""

import random
from collections import Counter, deque

import pytest

from engine.speculation.control.acceptance_rates import MAX_LONG_REST_STEPS, MAX_REST_STEPS, AcceptanceRates, Trust
from engine.speculation.control.controller import PROBE_DRAFTS, PROBE_STEPS, DraftController
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepCosts, StepWork

CHEAP = StepCosts(step=0.010, prompt_token=0.0002, sequence=0.0002, row=0.0002)
"""A step that reads weights: further rows are nearly free."""
DEAR = StepCosts(step=0.0001, prompt_token=0.001, sequence=0.001, row=0.001)
"""A step that computes: a row costs what a sequence does."""
EVIDENCE = 4


def chain(count: int, right: int) -> list[tuple[int, bool]]:
    """What is judged of so many guesses of which the first so many come true."""
    return [(guess, guess < right) for guess in range(min(count, right + 1))]


def chooser(costs: StepCosts) -> DraftController:
    """What counts guesses from the text, where steps cost this."""
    return DraftController(StepFit(costs), 8, in_engine=False)


def counted(
    controller: DraftController, trust: Trust, chance: float, steps: int, batch: int = 1, seed: int = 1
) -> float:
    """Guesses a step of a sequence whose guesses come true with this chance, over the last half of the steps."""
    draw, counts = random.Random(seed), []
    for _ in range(steps):
        controller.begin(batch, 100 * batch)
        count = controller.count(trust, EVIDENCE, 8)
        if count:
            right = next((place for place in range(count) if draw.random() >= chance), count)
            controller.learn(trust, EVIDENCE, count, chain(count, right))
        counts.append(count)
    return sum(counts[steps // 2 :]) / (steps - steps // 2)


@pytest.mark.parametrize(
    ("chance", "least", "most"),
    [(0.98, 7.5, 8), (0.8, 4, 8), (0.5, 1.5, 5), (0.0, 0.0, 3 * PROBE_DRAFTS / PROBE_STEPS)],
)
def test_the_likelier_guesses_are_the_more_are_made(chance: float, least: float, most: float) -> None:
    assert least <= counted(chooser(CHEAP), Trust(), chance, 600) <= most


def test_nothing_pays_where_a_step_is_bound_by_computing() -> None:
    assert counted(chooser(DEAR), Trust(), 1.0, 400, batch=64) <= 2 * PROBE_DRAFTS / PROBE_STEPS


def test_a_large_batch_makes_fewer_guesses_than_a_small_one() -> None:
    costs = StepCosts(step=0.010, prompt_token=0.0002, sequence=0.0002, row=0.0004)
    alone, many = (counted(chooser(costs), Trust(), 0.8, 300, batch) for batch in (1, 64))
    assert alone > 3 and many < 1


def test_it_begins_again_when_guesses_come_true_again() -> None:
    controller, trust = chooser(CHEAP), Trust()
    assert counted(controller, trust, 0.0, 400) < 0.1
    assert counted(controller, trust, 0.98, 6 * PROBE_STEPS) > 6


def test_a_branch_is_worth_what_its_siblings_leave() -> None:
    """The second guess goes on from the first, where it seldom comes true; the third is what comes otherwise."""
    agreement, trust = AcceptanceRates(), Trust()
    for turn in range(400):
        judged = [(0, True), (1, turn % 20 == 0)] if turn % 2 == 0 else [(0, False), (2, turn % 10 > 1)]
        agreement.learn(trust, 0, judged)
    of_tree, of_chain = agreement.tokens(3, (-1, 0, -1)), agreement.tokens(3)
    assert of_tree[3] - of_tree[2] > 0.3 > 0.1 > of_chain[3] - of_chain[2]
    assert agreement.tokens(3, (-1, 0, -1), odds=0.1)[3] < 1.5 < of_tree[3]


def test_tokens_of_a_tree_are_those_of_its_branches() -> None:
    """Each comes true with 0.6 if the one before it has, and no sibling."""
    assert AcceptanceRates().tokens(3) == pytest.approx([1, 1.6, 1.96, 2.176])
    assert AcceptanceRates().tokens(3, (-1, 0, -1)) == pytest.approx([1, 1.6, 1.96, 2.2])


def settled(any_guess: float, row: float, chance: float, bad: int = 0) -> tuple[dict[int, int], list[int]]:
    """How often each count is allowed where the engine guesses for four sequences, and what that costs, in steps.

    The guesses of so many of them never come true. Also what these were given of the last hundred steps.
    """
    fit = StepFit(StepCosts(step=0.001, sequence=0.0))
    controller, draw = DraftController(fit, 4, in_engine=True), random.Random(1)
    trusts, allowed, of_bad = [Trust() for _ in range(4)], Counter[int](), deque[int](maxlen=100)
    for _ in range(4000):
        decoding = controller.begin(4, 400)
        counts = [controller.count(trust, 0, 4) if controller.pays else 0 for trust in trusts]
        tokens = 4
        for at, (trust, count) in enumerate(zip(trusts, counts, strict=True)):
            right = 0 if at < bad else next((place for place in range(count) if draw.random() >= chance), count)
            tokens += right
            if count:
                controller.learn(trust, 0, count, chain(count, right))
        took = 0.001 * (1 + any_guess * any(counts) + row * sum(counts))
        controller.took(decoding, took * draw.uniform(0.9, 1.1), tokens)
        allowed[controller.allowed] += 1
        of_bad.append(sum(counts[:bad]))
    return allowed, list(of_bad)


def test_an_engine_guesses_as_many_as_pay() -> None:
    assert settled(0.1, 0.02, 0.8)[0][4] > 3200
    assert settled(0.7, 0.05, 0.8)[0][4] > 3200, "one guess does not pay, four do"
    assert settled(0.8, 0.15, 0.6)[0][0] > 3200


def test_an_engine_goes_on_for_others_where_one_is_left_out() -> None:
    allowed, of_bad = settled(0.4, 0.05, 0.9, bad=1)
    assert allowed[4] > 3000 and sum(of_bad) < 40


def test_one_sequence_that_fails_does_not_spoil_another() -> None:
    controller = chooser(CHEAP)
    good, bad = Trust(), Trust()
    for seed in range(30):
        counts = {
            name: counted(controller, trust, chance, 10, seed=seed)
            for name, trust, chance in (("good", good, 0.95), ("bad", bad, 0.02))
        }
    assert counts["good"] > 5 and counts["bad"] <= 2


def test_time_saved_is_what_rows_cost_less_than_steps() -> None:
    controller, trust = chooser(CHEAP), Trust()
    controller.begin(2, 0)
    share = (0.010 + 2 * 0.0002) / 2
    assert controller.learn(trust, 0, 4, chain(4, 3)) == pytest.approx(3 * share - 4 * 0.0002)
    assert controller.learn(trust, 0, 4, chain(4, 0)) == pytest.approx(-4 * 0.0002)


@pytest.mark.parametrize(
    ("until", "first", "longest"), [("rests", 0, MAX_REST_STEPS), ("long_rest", 5, MAX_LONG_REST_STEPS)]
)
def test_a_sequence_that_finds_nothing_rests_and_wakes_at_once(until: str, first: int, longest: int) -> None:
    trust, step, rests = Trust(), 0, []

    def wakes() -> int:
        return int(getattr(trust, f"{until}_until"))

    for _ in range(100):
        trust.fails(step, 5)
        rests.append(wakes() - step - 1)
        step = wakes()
    assert rests == sorted(rests) and (rests[0], rests[-1]) == (first, longest)
    trust.succeeds()
    assert wakes() <= step
    trust.fails(step, 5)
    assert wakes() - step - 1 == first


def test_the_fit_finds_what_a_row_costs_and_the_controller_follows() -> None:
    """It begins with rows that are far too dear, as a start may measure them."""
    true = StepCosts(step=0.010, prompt_token=0.0002, sequence=0.0005, row=0.0003)
    fit, draw = StepFit(StepCosts(step=0.010, prompt_token=0.002, sequence=0.0005, row=0.002)), random.Random(1)
    for _ in range(300):
        rows = draw.choice((0, 0, 2, 8, 16))
        work = StepWork(sequences=4, context=800, rows=rows)
        fit.learn(work, true.seconds(work) * draw.uniform(0.9, 1.1))
    assert fit.costs.row == pytest.approx(true.row, rel=0.2)


def test_what_a_step_with_any_guess_costs_is_shared_by_those_who_guess() -> None:
    controller = chooser(StepCosts(step=0.0001, prompt_token=0.001, sequence=0.001, row=0.0001, rows=0.004))
    for _ in range(100):
        controller.begin(64, 0)
        controller.verifies(1)
    assert controller.count(Trust(), EVIDENCE, 8) == 0
    for _ in range(100):
        controller.begin(64, 0)
        controller.verifies(40)
    assert controller.count(Trust(), EVIDENCE, 8) > PROBE_DRAFTS
