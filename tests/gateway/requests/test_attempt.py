"""The budget of retries: pure, with time as an argument."""

from gateway.requests.attempt import REFILL_TIME_S, RetryBudget


def test_the_budget_is_spent_and_fills_up() -> None:
    budget = RetryBudget(3, 0.0)
    assert [budget.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert budget.take(REFILL_TIME_S / 3) and not budget.take(REFILL_TIME_S / 3)
