"""Shows what a prompt is expected to wait behind those that have no first token yet, by what was seen."""

import pytest

from pricing.routes.backlog import Owner, owner_of
from pricing.routes.throughput import PromptThroughput

OWNER = Owner()


def test_the_wait_is_what_is_awaited_over_how_fast_it_came() -> None:
    pace, now = PromptThroughput(), 100.0
    for number in range(40):
        pace.begins(f"r-{number}", 200, OWNER, now)
    assert pace.wait(200, OWNER, now) == 0.0, "nothing is known yet"
    for number in range(30):
        now += 0.1  # 2,000 tokens/s
        pace.ends(f"r-{number}", now, came=True)
    assert pace.wait(200, OWNER, now) == pytest.approx(11 * 0.1, rel=0.1)


def test_where_nothing_comes_any_more_the_wait_grows() -> None:
    pace, now = PromptThroughput(), 0.0
    for number in range(20):
        pace.begins(f"r-{number}", 100, OWNER, now)
    for number in range(10):
        now += 0.1
        pace.ends(f"r-{number}", now, came=True)
    before = pace.wait(100, OWNER, now)
    assert pace.wait(100, OWNER, now + 2.0) > 3 * before


def test_who_is_given_up_is_not_awaited_and_nobody_awaited_is_no_wait() -> None:
    pace = PromptThroughput()
    pace.begins("r-1", 1000, OWNER, 0.0)
    pace.begins("r-2", 100, OWNER, 0.0)
    pace.ends("r-2", 1.0, came=True)
    assert pace.wait(100, OWNER, 1.0) > 5.0
    pace.ends("r-1", 1.0)
    assert pace.wait(100, OWNER, 1.0) == 0.0


def test_who_asks_beside_a_tenant_that_floods_waits_for_as_much_as_its_own_has() -> None:
    pace, now, flooding, other = PromptThroughput(), 100.0, owner_of("floods", 1.0), owner_of("other", 1.0)
    for number in range(200):
        pace.begins(f"f-{number}", 200, flooding, now)
    for number in range(50):
        now += 0.1  # 2,000 tokens/s
        pace.ends(f"f-{number}", now, came=True)
    assert pace.wait(200, flooding, now) == pytest.approx(151 * 0.1, rel=0.1)
    assert pace.wait(200, other, now) == pytest.approx(2 * 0.1, rel=0.1)
    pace.begins("o", 600, other, now)
    assert pace.wait(200, other, now) == pytest.approx(8 * 0.1, rel=0.1), "its own, and as much of the other's"
    assert pace.wait(200, owner_of("heavy", 4.0), now) == pytest.approx((1 + 0.25 + 0.25) * 0.1, rel=0.1)
